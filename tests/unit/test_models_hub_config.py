"""Configs from the Hub, over real HTTP from a small Hub on 127.0.0.1: downloaded once, and every refusal."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rooflens.errors import InputError, NotFoundError
from rooflens.models.read import clear_model_cache, read_model

constants = pytest.importorskip("huggingface_hub.constants")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/model"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 96,
    "torch_dtype": "float16",
}


class Hub:
    """One repository; ``refusal`` answers everything with (status, code), ``files_refusal`` only files."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"config.json": json.dumps(CONFIG).encode()}
        self.revisions = {"main", "v1", COMMIT}
        self.refusal: tuple[int, str] | None = None
        self.files_refusal: tuple[int, str] | None = None
        self.log: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.log.append(f"{request.command} {request.path}")
        status, code, body = self.look_up(request.path)
        request.send_response(status)
        if code:
            request.send_header("X-Error-Code", code)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", f'"{hash(body) & 0xFFFF:x}"')
        request.send_header("X-Repo-Commit", COMMIT)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    def look_up(self, path: str) -> tuple[int, str, bytes]:
        if self.refusal is not None:
            return *self.refusal, b""
        api = re.match(rf"/api/models/{REPO}(?:/revision/([^?]+))?(?:\?|$)", path)
        if api:
            if (api[1] or "main") not in self.revisions:
                return 404, "RevisionNotFound", b""
            siblings = [{"rfilename": name, "size": len(raw)} for name, raw in self.files.items()]
            return 200, "", json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode()
        file = re.fullmatch(rf"/{REPO}/resolve/(?:main|v1)/(.+)", path)
        if file and self.files_refusal is not None:
            return *self.files_refusal, b""
        if file and file[1] in self.files:
            return 200, "", self.files[file[1]]
        return 404, "EntryNotFound" if file else "RepoNotFound", b""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    clear_model_cache()
    server = Hub()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield server
    server.server.shutdown()
    server.server.server_close()
    clear_model_cache()


def test_a_config_is_downloaded_once(hub: Hub) -> None:
    spec = read_model(REPO)
    assert (spec.name, len(spec.layers), spec.notes) == (REPO, 2, ())
    asked = len(hub.log)
    assert read_model(REPO) is spec
    assert len(hub.log) == asked


def test_a_revision_is_asked_for(hub: Hub) -> None:
    assert read_model(f"{REPO}@v1").name == REPO
    assert any("/revision/v1" in line for line in hub.log)
    clear_model_cache()
    asked = len(hub.log)
    assert read_model(f"https://huggingface.co/{REPO}/tree/v1").name == REPO
    assert any("/revision/v1" in line for line in hub.log[asked:])
    with pytest.raises(NotFoundError, match="no revision 'v2'"):
        read_model(f"{REPO}@v2")


def test_a_bundled_id_is_answered_without_the_hub(hub: Hub) -> None:
    assert read_model("Qwen/Qwen2.5-7B-Instruct").name == "Qwen/Qwen2.5-7B-Instruct"
    assert hub.log == []


def test_modelopts_file_is_read_too(hub: Hub) -> None:
    algo = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    hub.files["hf_quant_config.json"] = json.dumps(
        {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": algo}
    ).encode()
    assert read_model(REPO).quantization is not None


def test_offline_the_cache_answers_and_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    read_model(REPO)
    clear_model_cache()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.log)
    spec = read_model(REPO)
    assert len(hub.log) == asked
    assert any("local cache" in note for note in spec.notes)


def test_offline_and_not_in_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NotFoundError, match="HF_HUB_OFFLINE"):
        read_model("owner/another")


def test_a_missing_repository_suggests_bundled_names(hub: Hub) -> None:
    with pytest.raises(NotFoundError, match=r"no model Qwen/Qwen2\.5-7B-Instruckt") as caught:
        read_model("Qwen/Qwen2.5-7B-Instruckt")
    assert caught.value.next is not None
    assert "Qwen/Qwen2.5-7B-Instruct" in caught.value.next


def test_a_gated_repository(hub: Hub) -> None:
    hub.files_refusal = (403, "GatedRepo")
    with pytest.raises(InputError, match="gated") as caught:
        read_model(REPO)
    assert caught.value.next is not None
    assert "HF_TOKEN" in caught.value.next


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        (["consolidated.safetensors", "params.json"], "vendor's own form"),
        (["adapter_config.json"], "adapter"),
        (["README.md"], "transformers model"),
    ],
)
def test_a_repository_without_a_config(hub: Hub, files: list[str], hint: str) -> None:
    hub.files = dict.fromkeys(files, b"x")
    with pytest.raises(NotFoundError, match=r"has no config\.json") as caught:
        read_model(REPO)
    assert caught.value.next is not None
    assert hint in caught.value.next


def test_a_web_page_in_place_of_the_config(hub: Hub) -> None:
    hub.files["config.json"] = b"<!DOCTYPE html><title>Log in to the network</title>"
    with pytest.raises(InputError, match="web page"):
        read_model(REPO)


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="could not be reached") as caught:
        read_model(REPO)
    assert caught.value.next is not None


def test_a_server_that_says_no(hub: Hub) -> None:
    hub.refusal = (429, "")
    with pytest.raises(InputError, match="rate of requests"):
        read_model(REPO)
