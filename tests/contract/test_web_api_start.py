"""``rooflens web``: where it listens, what it prints, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rooflens.errors import InputError
from rooflens.web.listen import listen


@contextmanager
def started(*args: str) -> Iterator[tuple[str, str]]:
    """The first line that the command prints, and its address."""
    code = "import sys; from rooflens.cli.main import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "web", "--no-browser", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield line, line.split()[2] if line else ""
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()


def test_it_prints_its_address_and_answers_there() -> None:
    with started("--port", "0") as (line, address):
        assert line.startswith("Rooflens on http://127.0.0.1:")
        assert "Ctrl+C" in line
        with urllib.request.urlopen(f"{address}api/health", timeout=20) as response:
            assert json.load(response)["status"] == "ok"
        with urllib.request.urlopen(address, timeout=20) as response:
            assert b"<title>Rooflens</title>" in response.read()


def test_another_address_comes_with_a_warning() -> None:
    code = "import sys; from rooflens.cli.main import main; main(sys.argv[1:])"
    arguments = [sys.executable, "-c", code, "web", "--no-browser", "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        warning = process.stderr.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
        process.stderr.close()
    assert warning.startswith("warning: 0.0.0.0 may be reached from other machines")


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1 port {port}"):
            listen("127.0.0.1", port)


def test_the_usual_port_gives_way_to_a_free_one() -> None:
    first, second = listen("127.0.0.1", None), listen("127.0.0.1", None)
    assert first.getsockname()[1] != second.getsockname()[1]
    first.close()
    second.close()


@pytest.mark.parametrize(("host", "port"), [("no such host", None), ("127.0.0.1", 70_000), ("127.0.0.1", -1)])
def test_addresses_that_cannot_be(host: str, port: int | None) -> None:
    with pytest.raises(InputError):
        listen(host, port)
