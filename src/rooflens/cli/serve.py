"""``rooflens serve``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rooflens.cli.guess_options import guess_options, open_proposer, take_guess_options
from rooflens.cli.runtime_options import open_backend, require_runtime, runtime_options, whole_option
from rooflens.errors import InputError

DEFAULT_PORT = 8000


@click.command()
@runtime_options
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen. [127.0.0.1]")
@click.option("--port", metavar="N", type=int, default=DEFAULT_PORT, show_default=True, help="0: a free one.")
@click.option("--name", metavar="NAME", help="What the API calls the model. [MODEL's name]")
@click.option(
    "--api-key", metavar="KEY", envvar="ROOFLENS_API_KEY", help="Ask it of callers. [$ROOFLENS_API_KEY]"
)
@whole_option("--max-sequences", help="Answers that run at once. [64]")
@whole_option("--max-batched-tokens", help="Tokens of a step, and so the longest chunk. [2048; CPU: 512]")
@click.option("--no-prefix-caching", is_flag=True, help="Keep no blocks for prompts that begin alike.")
@guess_options
def serve(
    host: str,
    port: int,
    name: str | None,
    api_key: str | None,
    max_sequences: int | None,
    max_batched_tokens: int | None,
    no_prefix_caching: bool,
    **options: Any,
) -> int:
    """Serve MODEL: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.

    It is served to this machine only, unless --host names another address. Ctrl-C ends it after the
    answers at hand.

    \b
    rooflens serve smollm2-135m-instruct --port 8000
    curl localhost:8000/v1/completions -H 'content-type: application/json' \\
         -d '{"prompt": "The ridge point", "max_tokens": 20}'
    """
    require_runtime("fastapi", "uvicorn", "prometheus_client", extra="serve")
    if options["random_weights"]:
        raise InputError(
            "random weights have no tokenizer, so they cannot be served", next="use `rooflens bench`"
        )
    guessing = take_guess_options(options)
    as_given = dict(options)
    from rooflens.web.listen import listen
    from rooflens.web.loopback import is_loopback

    # The port is taken before a model is loaded for nothing.
    socket = listen(host, port)
    served = name or _name_of(options["model"])
    backend = open_backend(options)
    import uvicorn

    from rooflens.runtime.engine.settings import EngineSettings
    from rooflens.server.app import ServerSettings, create_app

    engine = EngineSettings(prefix_caching=not no_prefix_caching)
    engine = replace(
        engine,
        max_sequences=max_sequences or engine.max_sequences,
        max_batched_tokens=max_batched_tokens or engine.max_batched_tokens,
    )
    proposer = open_proposer(guessing, backend, as_given)
    local = is_loopback(host)
    settings = ServerSettings(served, api_key, loopback_only=local)
    app = create_app(backend, settings, engine=engine, proposer=proposer)
    if not local:
        key = "asks for a key" if api_key else "has no login"
        click.echo(
            f"warning: {host} may be reached from other machines; the API {key}, no encryption", err=True
        )
    address = f"http://{f'[{host}]' if ':' in host else host}:{socket.getsockname()[1]}"
    click.echo(f"{served} on {address}/v1 (stop with Ctrl+C)")
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[socket])
    return 0


def _name_of(model: str) -> str:
    """A path's last part, any other name as it is."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model
