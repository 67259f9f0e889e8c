"""Models on the Hub, from a config and headers read in place: over real HTTP, from a Hub on 127.0.0.1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from gguf_models import converted, model_bytes, tensors_of
from test_checkpoint_model_safetensors import LLAMA, nbytes, plain, write
from test_models_hub_config import COMMIT, REPO, Hub

from rooflens.errors import InputError, NotFoundError
from rooflens.models.accounting import weights_bytes
from rooflens.models.checkpoint import range_source
from rooflens.models.read import clear_model_cache, read_model

constants = pytest.importorskip("huggingface_hub.constants")


class RangeHub(Hub):
    """A Hub whose files can be read in ranges at their commit; ``sent`` counts their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.broken = False

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Ranges of files are answered here, everything else as before."""
        file = re.fullmatch(rf"/{REPO}/resolve/{COMMIT}/(.+)", request.path)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if file is None or asked is None:
            return super().answer(request)
        raw = self.files[file[1]]
        part = raw[int(asked[1]) : int(asked[2]) + 1]
        self.sent += len(part)
        request.send_response(403 if self.broken else 206)
        request.send_header("Content-Length", str(len(part)))
        request.send_header("Content-Range", f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(raw)}")
        request.end_headers()
        request.wfile.write(part)
        return None


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeHub]:
    clear_model_cache()
    server = RangeHub()
    server.files.clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(range_source, "PAUSE_S", 0.001)
    endpoint = f"http://127.0.0.1:{server.server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield server
    server.server.shutdown()
    server.server.server_close()
    clear_model_cache()


def publish(hub: RangeHub, folder: Path) -> None:
    hub.files |= {path.name: path.read_bytes() for path in folder.iterdir()}


def gguf(name: str = "qwen3") -> bytes:
    model = converted()[name]
    return model_bytes(model["metadata"], tensors_of(model))


def test_a_repository_of_safetensors(hub: RangeHub, tmp_path: Path) -> None:
    tensors = plain(LLAMA)
    publish(hub, write(tmp_path / "m", LLAMA, tensors, shards=3))
    spec = read_model(REPO)
    assert spec.stored is not None
    assert weights_bytes(spec) == spec.stored.model_bytes == nbytes(tensors)
    assert (spec.name, spec.stored.files, spec.stored.findings) == (REPO, 3, ())
    asked = len(hub.log)
    assert read_model(REPO) is spec
    assert len(hub.log) == asked


@pytest.mark.parametrize(
    "name",
    [
        f"{REPO}:Q8_0",
        f"{REPO}:q8_0",
        f"{REPO}/tiny-Q8_0.gguf",
        f"{REPO}@{COMMIT}:Q8_0",
        f"{REPO}:Q8_0@{COMMIT}",
        f"{REPO}/tiny-Q8_0.gguf@{COMMIT}",
        f"https://huggingface.co/{REPO}/blob/main/tiny-Q8_0.gguf",
        f"https://huggingface.co/{REPO}/resolve/{COMMIT}/tiny-Q8_0.gguf?download=true",
    ],
)
def test_a_gguf_file_of_several(hub: RangeHub, name: str) -> None:
    hub.files = {"tiny-Q8_0.gguf": gguf("qwen3"), "tiny-Q4_0.gguf": gguf("llama")}
    spec = read_model(name)
    assert spec.model_type == "qwen3"
    assert spec.name.startswith(f"{REPO}:")
    assert spec.stored is not None
    assert weights_bytes(spec) == spec.stored.model_bytes


def test_only_the_header_is_read(hub: RangeHub) -> None:
    raw = gguf()
    hub.files = {"tiny-Q8_0.gguf": raw + b"\0" * (4 * 2**20)}
    assert read_model(REPO).model_type == "qwen3"  # the only model there, so it need not be named
    assert hub.sent < 2**20 < len(hub.files["tiny-Q8_0.gguf"])


def test_several_gguf_files_and_none_named(hub: RangeHub) -> None:
    hub.files = {"tiny-Q8_0.gguf": gguf(), "tiny-Q4_0.gguf": gguf()}
    with pytest.raises(NotFoundError, match=rf"name one of: tiny-Q4_0\.gguf.*as {REPO}:Q4_K_M"):
        read_model(REPO)
    hub.files["config.json"] = json.dumps(LLAMA).encode()
    clear_model_cache()
    spec = read_model(REPO)
    assert spec.model_type == "llama"
    assert any("holds 2 GGUF models, none of which is read" in note for note in spec.notes)


def test_a_selection_that_is_not_there(hub: RangeHub) -> None:
    hub.files = {"tiny-Q8_0.gguf": gguf()}
    with pytest.raises(NotFoundError, match="'Q4_K_M'"):
        read_model(f"{REPO}:Q4_K_M")
    with pytest.raises(NotFoundError, match=r"no file or GGUF quantisation 'other\.gguf'"):
        read_model(f"{REPO}/other.gguf")


def test_weights_that_cannot_be_read_leave_the_config(hub: RangeHub, tmp_path: Path) -> None:
    publish(hub, write(tmp_path / "m", LLAMA, plain(LLAMA)))
    hub.broken = True
    spec = read_model(REPO)
    assert spec.stored is None
    assert any(note.startswith("the weights' headers were not read: ") for note in spec.notes)


def test_a_file_of_this_machine_comes_first(hub: RangeHub, tmp_path: Path) -> None:
    folder = tmp_path / "owner" / "model"
    folder.mkdir(parents=True)
    with pytest.raises(NotFoundError, match=r"owner/model/x\.gguf does not exist"):
        read_model("owner/model/x.gguf")
    assert hub.log == []
    (folder / "x.gguf").write_bytes(gguf("llama"))
    assert read_model("owner/model/x.gguf").model_type == "llama"
    with pytest.raises(InputError, match="has no name"):
        read_model(" ")
