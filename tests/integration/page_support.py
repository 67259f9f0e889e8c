"""A server of the page in a thread, and Debian's chromium to look at it with."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from rooflens.web.app import create_app
from rooflens.web.listen import listen
from rooflens.web.settings import WebSettings

# No sandbox: CI runs as root. Nothing else than the page may use the network.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CHROMIUM = os.environ.get("ROOFLENS_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def served(settings: WebSettings | None = None) -> Iterator[str]:
    """The address of a running server."""
    socket = listen("127.0.0.1", 0)
    port = socket.getsockname()[1]
    app = create_app(settings or WebSettings(port=port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        socket.close()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """The browser; skips where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs chromium: apt-get install chromium, or ROOFLENS_CHROMIUM=PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()
