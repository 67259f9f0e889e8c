"""The socket that the page is served on."""

from __future__ import annotations

import socket

from rooflens.errors import InputError
from rooflens.web.settings import WebSettings

_HIGHEST_PORT = 65535
_BACKLOG = 512


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket: on ``port``, or on the usual one, or on any free one where that is taken.

    Raises InputError for an address that is not this machine's and for an asked port that is taken.
    """
    if port is not None and not 0 <= port <= _HIGHEST_PORT:
        raise InputError("--port is not usable", value=port, allowed=f"0 to {_HIGHEST_PORT}")
    if port is not None:
        return _bound(host, port)
    try:
        return _bound(host, WebSettings.port)
    except InputError:
        return _bound(host, 0)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InputError("--host is not an address of this machine", value=host, next=str(error)) from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror}", next="choose another --host or --port"
        ) from None
    return made
