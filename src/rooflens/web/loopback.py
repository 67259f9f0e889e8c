"""Addresses that only this machine reaches, and the names by which it may be asked there.

A page elsewhere can make a name of its own lead to 127.0.0.1 and so ask a server on loopback from a
visitor's browser ("DNS rebinding"): the request then carries that name in its Host header, and is refused.
"""

from __future__ import annotations

from ipaddress import ip_address

LOCALHOST = "localhost"


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine's loopback: localhost, 127.0.0.0/8, ::1."""
    name = host.strip("[]").rstrip(".").lower()
    if name == LOCALHOST or name.endswith(f".{LOCALHOST}"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def asks_for_loopback(host_header: str) -> bool:
    """Whether a Host header names the loopback, with or without a port."""
    has_port = ":" in host_header and not host_header.endswith("]")
    return is_loopback(host_header.rpartition(":")[0] if has_port else host_header)
