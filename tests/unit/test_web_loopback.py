"""Which names lead to this machine alone."""

from __future__ import annotations

import pytest

from rooflens.web.loopback import asks_for_loopback, is_loopback


@pytest.mark.parametrize(
    "name", ["127.0.0.1", "127.0.0.2", "localhost", "LOCALHOST", "localhost.", "::1", "[::1]"]
)
def test_loopback(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name",
    ["", "0.0.0.0", "::", "192.168.0.7", "example.com", "localhost.example.com", "127.0.0.1.example.com",
     "notlocalhost", "2130706433"],
)  # fmt: skip
def test_others(name: str) -> None:
    assert not is_loopback(name)


@pytest.mark.parametrize("header", ["localhost", "localhost:8710", "127.0.0.1:80", "[::1]", "[::1]:8710"])
def test_host_headers_of_this_machine(header: str) -> None:
    assert asks_for_loopback(header)


@pytest.mark.parametrize(
    "header", ["", ":8710", "rebound.example:8710", "10.0.0.1:8710", "[fe80::1]:80", "localhost:a:b"]
)
def test_host_headers_of_others(header: str) -> None:
    assert not asks_for_loopback(header)
