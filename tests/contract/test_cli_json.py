"""The JSON contract of the command line, and that it equals the Python API."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

import rooflens
import rooflens.errors
from rooflens.cli.main import main

LLAMA = "meta-llama/Llama-2-7b-hf"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(list(args))
    out, err = capsys.readouterr()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, out, err


def document(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> dict[str, Any]:
    got, out, err = run(capsys, *args, "--json")
    assert got == code, err
    assert err == ""
    result: dict[str, Any] = json.loads(out, parse_constant=lambda text: pytest.fail(text))
    return result


PLAN_KEYS = {
    "model": {
        "name", "model_type", "parameters", "active_parameters", "embedding_parameters", "weights_format",
        "weights_bytes", "kv_dtype", "kv_bytes_per_token", "kv_bytes_per_sequence",
        "state_bytes_per_sequence", "layers", "max_context", "evidence",
    },
    "device": {
        "name", "count", "memory_bytes", "bandwidth_bytes_per_s", "peak_flops_per_s", "compute_dtype",
        "ridge_flops_per_byte",
    },
    "workload": {"batch", "prompt", "output", "context", "tp", "pp", "ep", "dp", "engine"},
    "memory": {
        "weights_bytes", "kv_cache_bytes", "activation_bytes", "overhead_bytes", "total_bytes",
        "capacity_bytes", "fits", "kv_capacity_bytes", "kv_capacity_tokens", "max_sequences",
        "max_concurrency", "per_device",
    },
    "prefill": {
        "tokens", "flops", "bytes", "intensity_flops_per_byte", "compute_s", "memory_s",
        "communication_s", "bound_s", "limited_by", "op_roofline_s", "estimate_s", "tokens_per_s",
    },
    "decode": {
        "tokens", "flops", "bytes", "intensity_flops_per_byte", "compute_s", "memory_s",
        "communication_s", "bound_s", "limited_by", "op_roofline_s", "estimate_s", "tokens_per_s",
        "tokens_per_s_per_sequence",
    },
}  # fmt: skip


def test_plan_has_every_key_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, "plan", LLAMA, "-d", "a100-sxm-80")
    assert plan["schema"] == "rooflens.plan/1"
    for section, keys in PLAN_KEYS.items():
        assert keys <= set(plan[section]), section
    assert set(plan["prefill"]["estimate_s"]) == {"low", "mid", "high"}
    assert isinstance(plan["ridge_batch"], float)
    assert isinstance(plan["advice"], list)
    assert plan["workload"]["context"] == 512 + 128


def test_plan_equals_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch", "8", "--prompt", "1024", "--output", "256", "--count", "2", "--kv-dtype", "fp8"]
    got = document(capsys, "plan", "Qwen/Qwen2.5-7B-Instruct", "-d", "rtx-4090", *options)
    plan = rooflens.plan(
        "Qwen/Qwen2.5-7B-Instruct",
        device="rtx-4090",
        batch=8,
        prompt=1024,
        output=256,
        count=2,
        kv_dtype="fp8",
    )
    assert got == json.loads(json.dumps(plan.to_dict()))


def test_inspect_equals_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, "inspect", "google/gemma-3-27b-it", "--context", "131072")
    assert got == json.loads(json.dumps(rooflens.inspect("google/gemma-3-27b-it", context=131072).to_dict()))
    # 10 global layers x 16 heads x 128 x 2 x 2 B, 52 layers that keep 1024 tokens.
    assert got["kv_bytes_per_token"] == 10 * 16 * 128 * 2 * 2
    assert got["kv_bytes_per_sequence"] == 10 * 8192 * 131_072 + 52 * 8192 * 1024
    assert got["layers"]["sliding"] == 52
    assert got["layers"]["sliding_window"] == 1024


def test_free_form_model_and_device_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(
        capsys, "plan", "--params", "8e9", "--kv-bytes-per-token", "128KiB",
        "--peak", "165e12", "--bandwidth", "1e12", "--memory", "24GB",
    )  # fmt: skip
    assert got["device"]["ridge_flops_per_byte"] == 165
    assert got["model"]["parameters"] == 8_000_000_000
    assert got["model"]["kv_bytes_per_token"] == 131_072
    assert got["memory"]["capacity_bytes"] == 24_000_000_000


def test_what_does_not_fit_exits_1_and_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, "plan", "meta-llama/Llama-3.1-70B-Instruct", "-d", "a100-sxm-80", code=1)
    memory = got["memory"]
    assert memory["fits"] is False
    assert memory["deficit_bytes"] == memory["total_bytes"] - memory["capacity_bytes"] > 0
    assert memory["remedies"]


@pytest.mark.parametrize(("limit", "code"), [("tpot=1h", 0), ("ttft=1us", 1)])
def test_check_answers_with_the_exit_code(capsys: pytest.CaptureFixture[str], limit: str, code: int) -> None:
    document(capsys, "plan", LLAMA, "-d", "h100-sxm", "--check", limit, code=code)


def test_devices_filter_and_detail(capsys: pytest.CaptureFixture[str]) -> None:
    listed = document(capsys, "devices", "--vendor", "nvidia", "--min-memory", "100GB")
    assert listed["devices"]
    assert all(entry["memory_bytes"] >= 100e9 for entry in listed["devices"])
    one = document(capsys, "devices", "NVIDIA GeForce RTX 4090")
    assert one["id"] == "rtx-4090"
    assert {"registers", "L2"} <= {level["name"] for level in one["memory_levels"]}


def test_compare_keeps_a_reason_for_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, "compare", LLAMA, "-d", "a100-sxm-80,h100-sxm", "-w", "fp16,fp8")
    cells = {(cell["device"], cell["weights"]): cell for cell in got["cells"]}
    assert len(cells) == 4
    assert "fp8" in cells["a100-sxm-80", "fp8"]["error"]["what"]
    assert cells["h100-sxm", "fp8"]["plan"]["decode"]["bound_s"] > 0


def test_sweep_and_its_knee(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, "sweep", LLAMA, "-d", "h100-sxm", "--batch", "1:64", "--context", "1024")
    assert got["columns"]["batch"] == [1, 2, 4, 8, 16, 32, 64]
    assert got["axis"] == "batch"
    assert got["knee"]["cause"] in {"weights", "kv", "compute", "memory_full"}


def test_roofline_of_given_intensities(capsys: pytest.CaptureFixture[str]) -> None:
    got = document(capsys, "roofline", "--peak", "165e12", "--bandwidth", "1e12", "-i", "1,10,165,1000")
    rates = [point["attainable_flops_per_s"] for point in got["points"]]
    assert rates == [1e12, 10e12, 165e12, 165e12]
    assert [point["regime"] for point in got["points"]] == ["memory", "memory", "compute", "compute"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["plan", LLAMA, "-d", "rtx-4090", "--batch", "0"], "--batch"),
        (["plan", LLAMA, "-d", "rtx-4090", "--batch", "-1"], "--batch"),
        (["plan", LLAMA, "-d", "rtx-4090", "--batch", "two"], "--batch"),
        (["plan", LLAMA, "-d", "rtx-4090", "--memory", "24 Gb"], "24 Gb"),
        (["plan", LLAMA, "-d", "rtx-4091"], "rtx-4090"),
        (["plan", LLAMA, "-d", "h100-sxm", "--tp", "3"], "tp=3"),
        (["plan", LLAMA, "-d", "h100-sxm", "--weights", "q9_9"], "q9_9"),
        (["plan", LLAMA, "-d", "h100-sxm", "--kv-dtype", "fp5"], "fp5"),
        (["plan", LLAMA, "-d", "a100-sxm-80", "--weights", "fp8"], "fp8"),
        (["plan", LLAMA, "-d", "t4", "--weights", "bf16"], "bf16"),
        (["plan", "-d", "rtx-4090"], "no model"),
        (["plan", LLAMA], "no device"),
        (["plan", LLAMA, "-d", "rtx-4090", "--check", "speed=3"], "--check"),
        (["plan", "--active-params", "8e9", "-d", "rtx-4090"], "--params"),
        (["plan", "--params", "-8e9", "-d", "rtx-4090"], "--params"),
        (["plan", LLAMA, "--params", "8e9", "-d", "rtx-4090"], "both MODEL and --params"),
        (["inspect", "no-such-model-xyz"], "no-such-model-xyz"),
        (["devices", "--dtype", "fp5"], "fp5"),
        (["roofline", "-d", "rtx-4090", "-i", "1,zero"], "--intensity"),
        (["sweep", LLAMA, "-d", "rtx-4090", "--batch", "8:4"], "--batch"),
        (["roofline", "-d", "rtx-4090", "--batch", "8"], "--batch needs MODEL"),
        (["compare", LLAMA, "-d", "h100-sxm,rtx-4090", "-w", "fp16,nonsense"], "nonsense"),
        (["plan", LLAMA, "-d", "rtx-4090", "--bach", "2"], "--bach"),
        (["plann", LLAMA], "rooflens plan"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    code, out, err = run(capsys, *args)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
    code, out, err = run(capsys, *args, "--json")
    assert code == 2
    error = json.loads(err)["error"]
    assert set(error) == {"what", "value", "allowed", "next"}


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value


@pytest.mark.parametrize("device", [entry.id for entry in rooflens.devices()])
def test_every_device_plans_or_says_what_it_lacks(device: str) -> None:
    try:
        plan = rooflens.plan(LLAMA, device).to_dict()
    except rooflens.errors.UnsupportedError as error:
        if "no known" not in str(error):
            raise
        return
    assert all(math.isfinite(number) for number in numbers(plan))


def test_torch_and_pandas_stay_out_of_the_core() -> None:
    import subprocess
    import sys

    script = (
        "import sys, rooflens; rooflens.plan('meta-llama/Llama-2-7b-hf', 'h100-sxm').to_dict();"
        "bad = {'torch', 'pandas', 'altair', 'rich', 'numpy'} & set(sys.modules);"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
