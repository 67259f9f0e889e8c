"""The page's API and the Hub: asked only where it is allowed, and then for a model's config alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra web")
constants = pytest.importorskip("huggingface_hub.constants")

from test_models_hub_config import REPO, Hub  # noqa: E402

from rooflens.models.read import clear_model_cache  # noqa: E402
from rooflens.web.app import create_app  # noqa: E402
from rooflens.web.settings import WebSettings  # noqa: E402

CASE = {"model": REPO, "device": "t4"}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    clear_model_cache()
    server = Hub()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    yield server
    server.server.shutdown()
    server.server.server_close()
    clear_model_cache()


def client(*, allow_hub: bool) -> testclient.TestClient:
    return testclient.TestClient(create_app(WebSettings(allow_hub=allow_hub)), base_url="http://localhost")


def test_nothing_is_asked_of_the_hub_by_default(hub: Hub) -> None:
    response = client(allow_hub=False).post("/api/plan", json=CASE)
    assert response.status_code == 404
    assert response.json()["error"]["allowed"] == "a bundled name"
    assert hub.log == []


def test_where_it_is_allowed_the_config_alone_is_read(hub: Hub) -> None:
    response = client(allow_hub=True).post("/api/plan", json=CASE)
    assert response.status_code == 200
    assert response.json()["model"]["model_type"] == "llama"
    asked = [line for line in hub.log if "/resolve/" in line]
    assert asked
    assert all(line.endswith("config.json") for line in asked)


def test_what_the_hub_refuses_is_told_as_an_error(hub: Hub) -> None:
    hub.refusal = (404, "RepoNotFound")
    response = client(allow_hub=True).post("/api/plan", json=CASE)
    assert 400 <= response.status_code < 500
    assert set(response.json()["error"]) == {"what", "value", "allowed", "next"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b/c", "http://127.0.0.1:1/x", "owner/model/../x"])
def test_other_names_are_not_asked_for_even_then(hub: Hub, name: str) -> None:
    response = client(allow_hub=True).post("/api/plan", json={**CASE, "model": name})
    assert response.status_code == 404
    assert hub.log == []
