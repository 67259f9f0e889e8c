"""A small Hub on 127.0.0.1: the API, a redirect to a second server for the files, and its bad days."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """One repository, ``owner/model``. Set ``files``, and ``behaviour`` by file name; read ``log``."""

    repo = "owner/model"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.behaviour: dict[str, str] = {}
        self.api_status = 200
        self.api_code = ""
        self.api_body: bytes | None = None
        self.log: list[tuple[str, str, bool]] = []  # path, Range, was a token sent
        self.bytes_sent = 0
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}
        self._front = _serve(self._answer_front)
        self._storage = _serve(self._answer_storage)
        self.endpoint = f"http://127.0.0.1:{self._front.server_port}"

    def close(self) -> None:
        for server in (self._front, self._storage):
            server.shutdown()
            server.server_close()

    def requests(self, name: str) -> int:
        """How many times the storage was asked for a file."""
        return sum(path.startswith("/cdn/") and path.endswith(name) for path, _, _ in self.log)

    def _record(self, request: BaseHTTPRequestHandler) -> None:
        with self._lock:
            has_token = request.headers.get("Authorization") is not None
            self.log.append((request.path, request.headers.get("Range", ""), has_token))

    def _answer_front(self, request: BaseHTTPRequestHandler) -> None:
        self._record(request)
        if request.path.startswith("/api/models/"):
            body = self.api_body
            if body is None:
                siblings = [{"rfilename": name, "size": len(raw)} for name, raw in self.files.items()]
                body = json.dumps({"id": self.repo, "sha": COMMIT, "siblings": siblings}).encode()
            _send(request, self.api_status, body, {"X-Error-Code": self.api_code} if self.api_code else {})
            return
        match = re.fullmatch(f"/{self.repo}/resolve/{COMMIT}/(.*)", request.path)
        assert match is not None, request.path
        name = match[1]
        behaviour = self.behaviour.get(name, "")
        if behaviour.isdigit():
            _send(request, int(behaviour), b"no")
        elif behaviour.startswith("code:"):
            _, status, code = behaviour.split(":")
            _send(request, int(status), b"no", {"X-Error-Code": code})
        elif behaviour == "html":
            _send(request, 200, b"<!DOCTYPE html><title>Log in to the network</title>")
        else:
            location = f"http://127.0.0.1:{self._storage.server_port}/cdn/{name}"
            _send(request, 302, b"", {"Location": location})

    def _answer_storage(self, request: BaseHTTPRequestHandler) -> None:
        self._record(request)
        name = request.path.removeprefix("/cdn/")
        raw = self.files[name]
        behaviour = self.behaviour.get(name, "")
        if behaviour.startswith("flaky:"):
            with self._lock:
                self._failures[name] = self._failures.get(name, 0) + 1
                failing = self._failures[name] <= int(behaviour[6:])
            if failing:
                _send(request, 503, b"slow down")
                return
        if behaviour == "whole":
            _send(request, 200, raw)
            self.bytes_sent += len(raw)
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        assert asked is not None
        begin, end = int(asked[1]), min(int(asked[2]) + 1, len(raw))
        if begin >= len(raw):
            _send(request, 416, b"")
            return
        part = raw[begin:end]
        first = begin + 1 if behaviour == "shifted" else begin
        total = len(raw) + 1 if behaviour == "grown" else len(raw)
        headers = {"Content-Range": f"bytes {first}-{end - 1}/{total}"}
        if behaviour == "cut":
            headers["Content-Length"] = str(len(part))
            part = part[: len(part) // 2]
        if behaviour == "stall":
            headers["Content-Length"] = str(len(part))
            _send(request, 206, part[:4], headers)
            request.wfile.flush()
            time.sleep(1.0)
            return
        self.bytes_sent += len(part)
        _send(request, 206, part, headers)


def _send(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    headers = {"Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    request.send_response(status)
    for key, text in headers.items():
        request.send_header(key, text)
    request.end_headers()
    request.wfile.write(body)
    request.close_connection = True


def _serve(answer: Callable[[BaseHTTPRequestHandler], None]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):  # the client took what it wanted
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    try:
        yield hub
    finally:
        hub.close()
