"""Whatever is sent, the answer is below 500: a document or the error object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooflens.web.app import create_app

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")

APP = create_app()
SCHEMA = schemathesis.openapi.from_asgi("/api/openapi.json", APP, headers={"host": "localhost"})


def check(status: int, kind: str, body: bytes) -> None:
    assert status < 500
    if "json" in kind:
        document = json.loads(body, parse_constant=lambda text: pytest.fail(text))
        assert ("error" in document) == (status != 200)
        if status != 200:
            assert set(document["error"]) == {"what", "value", "allowed", "next"}


@SCHEMA.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_input_makes_the_server_fail(case: Any) -> None:
    response = case.call(headers={**(case.headers or {}), "host": "localhost"})
    check(response.status_code, response.headers.get("content-type", [""])[0], response.content)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner)
)
GOOD: dict[str, Any] = {"model": "Qwen/Qwen2.5-0.5B", "device": "t4"}
COUNTS = ("batch", "prompt", "output", "context", "count", "tp", "pp", "ep", "dp", "max_model_len",
          "max_batched_tokens", "max_sequences")  # fmt: skip
NUMBERS = st.integers(1, 10**12) | st.sampled_from([1, 2, 4, 8, 10**12])


@pytest.fixture(scope="module")
def client() -> Any:
    with TestClient(APP, base_url="http://localhost") as made:
        yield made


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from(["plan", "view", "advice", "operators"]),
    engine=st.sampled_from(["none", "vllm", "sglang", "llama.cpp", "ollama", "rooflens"]),
    counts=st.dictionaries(st.sampled_from(COUNTS), NUMBERS, max_size=4),
    rates=st.dictionaries(
        st.sampled_from(["peak", "bandwidth", "memory"]), st.floats(1e-300, 1e24), max_size=3
    ),
)
def test_extreme_numbers(client: Any, route: str, engine: str, counts: Any, rates: Any) -> None:
    response = client.post(f"/api/{route}", json={**GOOD, "engine": engine, **counts, **rates})
    check(response.status_code, response.headers["content-type"], response.content)
    assert "a fault in Rooflens" not in response.text, response.text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from([*COUNTS, "model", "device", "weights", "engine", "params", "config_text"]),
    value=JSON,
)
def test_any_json_in_any_field(client: Any, field: str, value: Any) -> None:
    body = json.dumps({**GOOD, field: value})
    response = client.post("/api/plan", content=body, headers={"content-type": "application/json"})
    check(response.status_code, response.headers["content-type"], response.content)
    assert "a fault in Rooflens" not in response.text, response.text
