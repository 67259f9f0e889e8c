"""The page's API: it answers what the command line prints, and every error with the same object."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from rooflens.cli.main import main
from rooflens.models.bundled import find_bundled
from rooflens.web import app as app_module
from rooflens.web.app import create_app
from rooflens.web.settings import WebSettings

QWEN = "Qwen/Qwen2.5-7B-Instruct"
CASE: dict[str, Any] = {"model": QWEN, "device": "rtx-4090"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(), base_url="http://localhost") as made:
        yield made


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """What the command line prints with --json, on either stream."""
    with pytest.raises(SystemExit):
        main([*args, "--json"])
    out, err = capsys.readouterr()
    return json.loads(out or err)


# Body and the same question as arguments.
SAME: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "plan": (
        "plan",
        {**CASE, "batch": 8, "prompt": 1024, "output": 256, "engine": "vllm", "kv_dtype": "fp8", "tp": 2},
        [
            "plan", QWEN, "-d", "rtx-4090", "--batch", "8", "--prompt", "1024", "--output", "256",
            "--engine", "vllm", "--kv-dtype", "fp8", "--tp", "2",
        ],
    ),
    "served plan": (
        "plan",
        {**CASE, "engine": "vllm", "rate": 2.0, "output_std": 64, "shared_prefix": 0.25},
        [
            "plan", QWEN, "-d", "rtx-4090", "--engine", "vllm", "--rate", "2/s", "--output-std", "64",
            "--prefix-share", "0.25",
        ],
    ),
    "techniques": (
        "plan",
        {**CASE, "techniques": ["weights=fp8", "draft=4:0.7"]},
        ["plan", QWEN, "-d", "rtx-4090", "--try", "weights=fp8", "--try", "draft=4:0.7"],
    ),
    "pools over nodes": (
        "plan",
        {
            "model": QWEN, "device": "l40s", "dp": 4, "engine": "vllm", "rate": 4.0,
            "prefill_device": "h100-sxm", "prefill_count": 2, "prefill_tp": 1,
            "devices_per_node": 2, "network": "25GB/s",
        },
        [
            "plan", QWEN, "-d", "l40s", "--count", "4", "--dp", "4", "--engine", "vllm", "--rate", "4/s",
            "--prefill-device", "h100-sxm", "--prefill-count", "2", "--prefill-tp", "1",
            "--devices-per-node", "2", "--network", "25GB/s",
        ],
    ),
    "unknown technique": (
        "plan", {**CASE, "techniques": ["magic"]}, ["plan", QWEN, "-d", "rtx-4090", "--try", "magic"],
    ),
    "plan that does not fit": (
        "plan",
        {"model": "meta-llama/Llama-3.1-70B-Instruct", "device": "rtx-4090"},
        ["plan", "meta-llama/Llama-3.1-70B-Instruct", "-d", "rtx-4090"],
    ),
    "free form by hand": (
        "plan",
        {
            "params": "8B", "kv_bytes_per_token": "128KiB", "peak": 165e12, "bandwidth": "1TB/s",
            "memory": "24GB",
        },
        [
            "plan", "--params", "8e9", "--kv-bytes-per-token", "128KiB", "--peak", "165e12",
            "--bandwidth", "1e12", "--memory", "24e9",
        ],
    ),
    "inspect": (
        "inspect",
        {"model": "google/gemma-3-27b-it", "context": 131072, "weights": "q4_k_m"},
        ["inspect", "google/gemma-3-27b-it", "--context", "131072", "--weights", "q4_k_m"],
    ),
    "sweep": (
        "sweep",
        {**CASE, "batch": [1, 2, 4, 8], "context": 4096},
        ["sweep", QWEN, "-d", "rtx-4090", "--batch", "1:8", "--context", "4096"],
    ),
    "sweep by default": ("sweep", CASE, ["sweep", QWEN, "-d", "rtx-4090"]),
    "compare": (
        "compare",
        {"model": QWEN, "devices": ["t4", "h100-sxm"], "weights": ["fp16", "int4"], "batch": 4},
        ["compare", QWEN, "-d", "t4,h100-sxm", "-w", "fp16,int4", "--batch", "4"],
    ),
    "compare with the stored format": (
        "compare",
        {"model": QWEN, "devices": ["t4"], "weights": [None, "int4"]},
        ["compare", QWEN, "-d", "t4", "-w", "stored,int4"],
    ),
    "roofline": (
        "roofline",
        {"peak": 165e12, "bandwidth": 1e12, "intensities": [1.0, 165.0, 1000.0]},
        ["roofline", "--peak", "165e12", "--bandwidth", "1e12", "-i", "1,165,1000"],
    ),
    "roofline of a model": (
        "roofline", {**CASE, "batch": [1, 32]}, ["roofline", QWEN, "-d", "rtx-4090", "--batch", "1,32"],
    ),
    "unknown device": ("plan", {"model": QWEN, "device": "rtx-9999"}, ["plan", QWEN, "-d", "rtx-9999"]),
    "no device": ("plan", {"model": QWEN}, ["plan", QWEN]),
    "impossible layout": (
        "plan", {**CASE, "tp": 3}, ["plan", QWEN, "-d", "rtx-4090", "--tp", "3"],
    ),
    "unknown format": (
        "plan", {**CASE, "weights": "q4_k_x"}, ["plan", QWEN, "-d", "rtx-4090", "-w", "q4_k_x"],
    ),
    "unknown engine": (
        "plan", {**CASE, "engine": "vlm"}, ["plan", QWEN, "-d", "rtx-4090", "--engine", "vlm"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_answers_equal_the_command_line(
    client: TestClient, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    route, body, arguments = SAME[name]
    response = client.post(f"/api/{route}", json=body)
    expected = printed(capsys, *arguments)
    assert response.json() == expected
    assert (response.status_code == 200) == ("error" not in expected)


def test_lists_equal_the_command_line(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    assert client.get("/api/devices").json() == printed(capsys, "devices")
    filters = {"vendor": "nvidia", "min_memory": "80GB"}
    got = client.get("/api/devices", params=filters).json()
    assert got == printed(capsys, "devices", "--vendor", "nvidia", "--min-memory", "80GB")
    assert client.get("/api/devices/RTX 4090").json() == printed(capsys, "devices", "rtx-4090")
    ids = {model["id"] for model in client.get("/api/models").json()["models"]}
    assert QWEN in ids
    formats = client.get("/api/formats").json()
    assert {"vllm", "llama.cpp", "none"} <= set(formats["engines"])
    assert "q4_k_m" in formats["weights"]
    assert "fp8" in formats["kv_dtypes"]


def test_csv_equals_the_file_that_the_command_line_writes(
    client: TestClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "plan.csv"
    printed(capsys, "plan", QWEN, "-d", "rtx-4090", "-o", str(out))
    response = client.post("/api/plan?format=csv", json=CASE)
    assert response.headers["content-type"].startswith("text/csv")
    assert response.text == out.read_text(encoding="utf-8")


def test_a_config_may_be_sent_as_fields_or_as_text(client: TestClient) -> None:
    bundled = find_bundled(QWEN)
    assert bundled is not None
    text = (bundled.directory / "config.json").read_text(encoding="utf-8")
    by_name = client.post("/api/plan", json=CASE).json()
    for way in ({"model": json.loads(text)}, {"config_text": text}):
        got = client.post("/api/plan", json={**way, "device": "rtx-4090"}).json()
        assert got["memory"] == by_name["memory"]
        assert got["decode"] == by_name["decode"]


def test_a_view_holds_the_same_plan_and_sweep(client: TestClient) -> None:
    body = {**CASE, "batch": 8}
    got = client.post(
        "/api/view", json={**body, "compare_devices": ["h100-sxm", "nonesuch"], "sweep_values": [1, 8, 64]}
    ).json()
    plan = client.post("/api/plan", json=body).json()
    assert got["plan"] == {**plan, "advice": []}
    assert got["sweep"] == client.post("/api/sweep", json={**CASE, "batch": [1, 8, 64]}).json()
    mine, other, unknown = got["roofs"]
    assert mine["device"] == "rtx-4090"
    assert [point["label"] for point in other["points"]] == ["prefill", "decode"]
    assert unknown["error"]["value"] == "nonesuch"
    assert got["sentences"]["verdict"].startswith("Fits: ")
    chinese = client.post("/api/view", json={**body, "lang": "zh"}).json()
    assert chinese["sentences"]["verdict"].startswith("放得下")


def test_what_would_make_it_fit_comes_with_the_advice(client: TestClient) -> None:
    body = {"model": "meta-llama/Llama-3.1-70B-Instruct", "device": "rtx-4090"}
    view = client.post("/api/view", json=body).json()
    assert view["plan"]["memory"]["remedies"] == []
    assert view["sentences"]["verdict"].startswith("Does not fit: ")
    assert "would fit" in client.post("/api/advice", json=body).json()["remedy"]


def test_advice_is_that_of_the_plan(client: TestClient) -> None:
    plan = client.post("/api/plan", json=CASE).json()
    told = client.post("/api/advice", json={**CASE, "lang": "zh"}).json()["advice"]
    assert [one["technique"] for one in told] == [one["technique"] for one in plan["advice"]]
    assert [one["decode_gain"] for one in told] == [one["decode_gain"] for one in plan["advice"]]


def test_operators_add_up_to_the_plan(client: TestClient) -> None:
    plan = client.post("/api/plan", json=CASE).json()
    rows = client.post("/api/operators", json=CASE).json()
    for phase in ("prefill", "decode"):
        assert sum(row["flops"] for row in rows[phase]) == pytest.approx(plan[phase]["flops"])
        moved = sum(row["weight_bytes"] + row["kv_bytes"] for row in rows[phase])
        assert moved == pytest.approx(plan[phase]["bytes"])


def check_error(response: httpx.Response) -> dict[str, Any]:
    assert 400 <= response.status_code < 500
    document = response.json()
    assert set(document) == {"error"}
    error: dict[str, Any] = document["error"]
    assert set(error) == {"what", "value", "allowed", "next"}
    assert error["what"]
    return error


BAD_TEXT = {
    "nothing": b"",
    "cut off": b'{"model": "Qwen',
    "array": b"[]",
    "null": b"null",
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "deep object": b'{"model": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001,
    "long number": b'{"batch": ' + b"9" * 5_000 + b"}",
    "infinite": b'{"model": "gpt2", "device": "t4", "peak": 1e999}',
    "not a number": b'{"model": "gpt2", "device": "t4", "batch": NaN}',
    "half a surrogate": b'{"model": "\\ud800", "device": "t4"}',
    "half a surrogate in a config": b'{"config_text": "{\\"model_type\\": \\"\\ud800\\"}", "device": "t4"}',
    "boolean": b'{"model": "gpt2", "device": "t4", "batch": true}',
    "text for a number": b'{"model": "gpt2", "device": "t4", "batch": "8"}',
    "negative": b'{"model": "gpt2", "device": "t4", "batch": -1}',
    "zero": b'{"model": "gpt2", "device": "t4", "batch": 0}',
    "fraction": b'{"model": "gpt2", "device": "t4", "batch": 1.5}',
    "enormous": b'{"model": "gpt2", "device": "t4", "batch": 1000000000000000000}',
    "unknown field": b'{"model": "gpt2", "device": "t4", "bacth": 8}',
    "two models": b'{"model": "gpt2", "params": 8, "device": "t4"}',
    "no model": b'{"device": "t4"}',
    "unit": b'{"params": "8G8", "device": "t4"}',
    "bits": b'{"model": "gpt2", "device": "t4", "memory": "24Gb"}',
    "empty config": b'{"model": {}, "device": "t4"}',
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_bodies_get_the_error_object(client: TestClient, name: str) -> None:
    headers = {"content-type": "application/json"}
    check_error(client.post("/api/plan", content=BAD_TEXT[name], headers=headers))


def test_an_unknown_architecture_is_named(client: TestClient) -> None:
    config = '{"model_type": "strange", "architectures": ["StrangeForCausalLM"]}'
    error = check_error(client.post("/api/plan", json={"config_text": config, "device": "t4"}))
    assert "strange" in error["what"]


def test_a_truncated_config_is_said_to_be_cut_off(client: TestClient) -> None:
    error = check_error(client.post("/api/plan", json={"config_text": '{"model_type": "qwe', "device": "t4"}))
    assert "cut off" in error["what"]


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "./config.json", "../..", "~/model", "model.gguf", "https://huggingface.co/a/b", "a/b"],
)
def test_no_path_address_or_hub_id_is_opened(client: TestClient, name: str, tmp_path: Path) -> None:
    error = check_error(client.post("/api/plan", json={"model": name, "device": "t4"}))
    assert error["what"] == "no bundled model has this name"
    assert error["value"] == name


def test_a_folder_with_a_bundled_name_is_not_read(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.chdir(tmp_path)
    got = client.post("/api/inspect", json={"model": "gpt2"}).json()
    assert got["model_type"] == "gpt2"


def test_no_saved_probe_is_read_by_name(client: TestClient, tmp_path: Path) -> None:
    probe = tmp_path / "probe.json"
    probe.write_text("{}")
    for body in (
        {"device": str(probe)},
        {"device": "t4", "prefill_device": str(probe)},
        {"device": "t4", "techniques": [f"device={probe}"]},
    ):
        error = check_error(client.post("/api/plan", json={"model": "gpt2", **body}))
        assert error["what"] == "device is not in the catalogue"


def test_limits_of_size_and_points(client: TestClient) -> None:
    large = client.post("/api/plan", json={"config_text": "x" * 3_000_000})
    assert large.status_code == 413
    check_error(large)
    many = check_error(
        client.post("/api/sweep", json={**CASE, "batch": list(range(1, 101)), "context": list(range(100))})
    )
    assert many["value"] == 100 * 100
    cells = {"model": QWEN, "devices": ["t4"] * 5, "weights": ["fp16"] * 5}
    assert check_error(client.post("/api/compare", json=cells))["value"] == 25


def test_wrong_methods_and_addresses(client: TestClient) -> None:
    response = client.get("/api/plan")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    check_error(response)
    check_error(client.get("/api/nothing"))


def test_other_hosts_are_refused(client: TestClient) -> None:
    response = client.get("/api/health", headers={"host": "attacker.example:8710"})
    assert response.status_code == 421
    check_error(response)
    for host in ("localhost:8710", "127.0.0.1", "[::1]:8710"):
        assert client.get("/api/health", headers={"host": host}).status_code == 200
    with TestClient(
        create_app(WebSettings(host="0.0.0.0")), base_url="http://planner.example"
    ) as open_client:
        assert open_client.get("/api/health").status_code == 200
        check_error(open_client.post("/api/plan", json={"model": "gpt2", "device": "local"}))


def test_every_answer_carries_the_security_headers(client: TestClient) -> None:
    for response in (
        client.get("/"),
        client.get("/api/health"),
        client.get("/nothing"),
        client.post("/api/plan"),
    ):
        assert "script-src 'self'" in response.headers["content-security-policy"]
        assert "unsafe" not in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in response.headers


def test_a_fault_is_told_as_one_and_never_as_500(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(body: object, settings: object) -> dict[str, Any]:
        raise KeyError("a bug")

    monkeypatch.setattr(app_module.answers, "plan_answer", broken)
    with TestClient(create_app(), base_url="http://localhost") as client:
        error = check_error(client.post("/api/plan", json=CASE))
    assert "a fault in Rooflens" in error["what"]
    assert error["value"] == "KeyError"


def test_an_answer_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module.answers, "plan_answer", lambda body, settings: time.sleep(0.5) or {})
    with TestClient(create_app(WebSettings(answer_timeout_s=0.05)), base_url="http://localhost") as client:
        response = client.post("/api/plan", json=CASE)
    assert response.status_code == 408
    check_error(response)


def test_more_requests_than_may_wait_are_refused() -> None:
    async def ask() -> list[int]:
        transport = httpx.ASGITransport(create_app(WebSettings(most_waiting=2)))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = await asyncio.gather(*(client.post("/api/plan", json=CASE) for _ in range(20)))
        return [answer.status_code for answer in answers]

    codes = asyncio.run(ask())
    assert set(codes) == {200, 429}


def test_health_answers_beside_two_hundred_sliders() -> None:
    async def ask() -> tuple[list[int], int]:
        transport = httpx.ASGITransport(create_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            sliders = [
                asyncio.create_task(client.post("/api/view", json={**CASE, "batch": 1 + number}))
                for number in range(200)
            ]
            await asyncio.sleep(0)
            health = await client.get("/api/health")
            assert health.status_code == 200
            waiting = sum(not slider.done() for slider in sliders)
            return [slider.status_code for slider in await asyncio.gather(*sliders)], waiting

    codes, waiting = asyncio.run(ask())
    assert codes == [200] * 200
    assert waiting > 100


def test_openapi_documents_every_route(client: TestClient) -> None:
    document = client.get("/api/openapi.json").json()
    names = ("plan", "inspect", "sweep", "compare", "roofline", "view", "advice", "operators")
    for name in names:
        operation = document["paths"][f"/api/{name}"]["post"]
        assert operation["summary"]
        assert operation["responses"]["4XX"]
    for name in ("devices", "models", "formats", "health", "catalogue", "words"):
        assert document["paths"][f"/api/{name}"]["get"]["description"]
