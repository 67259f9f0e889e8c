"""``rooflens web``."""

from __future__ import annotations

import sys
from typing import Any

import click

from rooflens.errors import DependencyError

# The loop thread takes turns with the computing ones this often, so that it answers while they work.
_SWITCH_INTERVAL_S = 0.001


@click.command()
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen. [127.0.0.1]")
@click.option("--port", metavar="N", type=int, default=None, help="[8710, or a free one if that is taken]")
@click.option("--no-browser", is_flag=True, help="Do not open the page in a browser.")
@click.option("--allow-hub", is_flag=True, help="Look up model ids on the Hugging Face Hub (metadata only).")
def web(host: str, port: int | None, no_browser: bool, allow_hub: bool) -> int:
    """The interactive page: move batch, context and formats, and see what changes.

    It is served to this machine only, unless --host names another address. Nothing is fetched from
    elsewhere; model ids are looked up on the Hub only with --allow-hub.
    """
    try:
        import uvicorn

        from rooflens.web.app import create_app
    except ImportError as error:
        raise DependencyError(
            "the page needs FastAPI and uvicorn",
            value=error.name,
            next="install them with `pip install 'rooflens[web]'`",
        ) from error
    from rooflens.web.listen import listen
    from rooflens.web.settings import WebSettings

    socket = listen(host, port)
    chosen = int(socket.getsockname()[1])
    settings = WebSettings(host=host, port=chosen, allow_hub=allow_hub)
    address = f"http://{f'[{host}]' if ':' in host else host}:{chosen}/"
    if not settings.on_loopback:
        click.echo(
            f"warning: {host} may be reached from other machines; the page has no login and no encryption",
            err=True,
        )
    click.echo(f"Rooflens on {address} (stop with Ctrl+C)")
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    config: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    server = uvicorn.Server(uvicorn.Config(create_app(settings), **config))
    if not no_browser:
        import webbrowser

        webbrowser.open(address)  # the socket listens already: the browser waits for the first answer
    server.run(sockets=[socket])
    return 0
