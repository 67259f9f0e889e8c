"""Loading: sharded and single files, types, random weights, memory; and every way a checkpoint can be bad."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from rooflens.errors import CapacityError, InputError, NotFoundError, UnsupportedError  # noqa: E402
from rooflens.models.accounting import weights_bytes  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.models.tensors import checkpoint_tensors  # noqa: E402
from rooflens.runtime import NativeBackend, Qwen2Model, SamplingParams, load_qwen2_weights  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.kernels import kernels_for  # noqa: E402

torch.set_num_threads(1)

CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
TOKENS = [5, 9, 33, 2, 71]


def make_tensors(dtype: Any = None) -> dict[str, Any]:
    torch.manual_seed(0)
    spec = read_spec(CONFIG, name="tiny")
    made = {name: 0.2 * torch.randn(shape) for name, shape in checkpoint_tensors(spec)}
    return {name: value.to(dtype or torch.float32) for name, value in made.items()}


def write(directory: Path, tensors: dict[str, Any], config: dict[str, Any] = CONFIG) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    safetensors_torch.save_file(tensors, directory / "model.safetensors")
    return directory


def write_sharded(directory: Path, tensors: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(tensors)
    halves = {"1": names[: len(names) // 2], "2": names[len(names) // 2 :]}
    weight_map = {}
    for number, part in halves.items():
        file = f"model-0000{number}-of-00002.safetensors"
        safetensors_torch.save_file({name: tensors[name] for name in part}, directory / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def logits(backend: NativeBackend) -> Any:
    return backend.step(StepBatch.build([Chunk(TOKENS, 0, [0], sample=len(TOKENS))]))


def test_single_and_sharded_files_give_the_same_model(tmp_path: Path) -> None:
    tensors = make_tensors()
    single = NativeBackend(write(tmp_path / "single", tensors), device="cpu")
    sharded = NativeBackend(write_sharded(tmp_path / "sharded", tensors), device="cpu")
    assert torch.equal(logits(single), logits(sharded))
    assert single.report.format == "safetensors"
    assert single.report.stored == {"F32": len(tensors)}
    assert single.dtype_name == "fp32"


@pytest.mark.parametrize("kernels", ["cpu", None])
def test_the_held_bytes_are_those_of_the_spec(tmp_path: Path, kernels: str | None) -> None:
    directory = write(tmp_path / "m", make_tensors())
    for dtype in ("fp32", "bf16"):
        for weights in (None, "int8", "int4"):
            backend = NativeBackend(directory, device="cpu", dtype=dtype, weights=weights, kernels=kernels)
            held = backend.report.held_bytes
            if weights == "int4" and backend.model.kernels.name == "cpu":
                # Levels, scales and minima are kept a second time (see Int4Linear).
                blocks = 2 * (32 * (32 + 2 * 16) + 32 * 32 + 3 * 32 * 64)
                held -= blocks // 2 + blocks // 32 * 2 * backend.dtype.itemsize
            assert weights_bytes(backend.spec) == held


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_other_stored_types_are_converted(tmp_path: Path, stored: Any) -> None:
    tensors = make_tensors(stored)
    backend = NativeBackend(write(tmp_path / "m", tensors), device="cpu", dtype="fp32")
    same = {name: value.float() for name, value in tensors.items()}
    expected = NativeBackend(write(tmp_path / "wide", same), device="cpu", dtype="fp32")
    assert torch.equal(logits(backend), logits(expected))


def test_the_contract_names_load_qwen2(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", make_tensors())
    spec = read_spec(CONFIG, name="tiny")
    model = Qwen2Model(spec, kernels_for(torch.device("cpu")))
    report = load_qwen2_weights(model, directory)
    assert report.held_bytes == weights_bytes(spec)
    backend = NativeBackend(directory, device="cpu")
    assert isinstance(backend.model, Qwen2Model)
    batch = StepBatch.build([Chunk(TOKENS, 0, [0], sample=5)])
    # The backend may run the step as one call, which adds in another order.
    assert torch.allclose(model(batch, backend.new_cache(blocks=1)), logits(backend), atol=1e-5)
    llama = read_spec({**CONFIG, "model_type": "llama"}, name="llama")
    with pytest.raises(UnsupportedError, match="not of the type"):
        Qwen2Model(llama, kernels_for(torch.device("cpu")))


def test_module_paths_are_the_operators_of_the_prediction(tmp_path: Path) -> None:
    from rooflens.analysis.step import prefill_step, step_ops

    backend = NativeBackend.from_random(CONFIG, device="cpu")
    paths = {name for name, _ in backend.model.named_modules()}
    for op in step_ops(backend.spec, prefill_step(sequences=1, prompt=4), kv_dtype="bf16"):
        for index in op.indices or (0,):
            assert op.name.replace("{i}", str(index)) in paths


@pytest.mark.parametrize(("weights", "tolerance"), [("int8", 0.02), ("int4", 0.2)])
@pytest.mark.parametrize("rows", [1, 5, 40, 100])
def test_quantised_weights_stay_near(tmp_path: Path, weights: str, tolerance: float, rows: int) -> None:
    directory = write(tmp_path / "m", make_tensors())
    plain = NativeBackend(directory, device="cpu", dtype="bf16")
    packed = NativeBackend(directory, device="cpu", dtype="bf16", weights=weights)
    batch = StepBatch.build([Chunk([1 + row % 90 for row in range(rows)], 0, list(range(7)), sample=rows)])
    expected, got = plain.step(batch), packed.step(batch)
    assert (got - expected).abs().mean() <= tolerance * expected.abs().mean()


# Bad input: each has one clear error.


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = make_tensors()
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(NotFoundError, match=r"model\.layers\.1\.self_attn\.k_proj\.weight"):
        NativeBackend(write(tmp_path / "m", tensors), device="cpu")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    directory = write_sharded(tmp_path / "m", make_tensors())
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(NotFoundError, match="model-00002-of-00002"):
        NativeBackend(directory, device="cpu")


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors["model.layers.0.mlp.down_proj.weight"] = torch.zeros(32, 65)
    with pytest.raises(InputError, match=r"down_proj.*\[32, 65\].*\[32, 64\]"):
        NativeBackend(write(tmp_path / "m", tensors), device="cpu")


def test_a_wrong_head_size_is_corrected_and_told(tmp_path: Path) -> None:
    # q_proj has 32 rows: 4 heads of 8. A config that says heads of 16 is refuted by the weights.
    right = NativeBackend(write(tmp_path / "right", make_tensors()), device="cpu")
    wrong = NativeBackend(write(tmp_path / "m", make_tensors(), {**CONFIG, "head_dim": 16}), device="cpu")
    assert any("head_dim 16" in note for note in wrong.report.notes)
    assert torch.equal(logits(right), logits(wrong))


def test_projections_that_do_not_match_their_heads_are_refused() -> None:
    spec = read_spec(CONFIG, name="tiny")
    layer = spec.layers[0]
    mixer = replace(layer.mixers[0], head_dim=16)  # type: ignore[type-var]
    broken = replace(spec, layers=(replace(layer, mixers=(mixer,)),))
    with pytest.raises(InputError, match=r"do not match the heads.*64 rows.*128"):
        NativeBackend.from_random(broken, device="cpu")


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    tensors = {**make_tensors(), "model.layers.0.self_attn.extra.weight": torch.zeros(4)}
    with pytest.raises(InputError, match=r"no place for.*extra"):
        NativeBackend(write(tmp_path / "m", tensors), device="cpu")


def test_a_bias_that_the_config_does_not_know_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", make_tensors(), {**CONFIG, "model_type": "llama"})
    with pytest.raises(InputError, match="bias"):
        NativeBackend(directory, device="cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(tmp_path: Path, value: float) -> None:
    tensors = make_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj.*1 values that are not finite"):
        NativeBackend(write(tmp_path / "m", tensors), device="cpu")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "m", make_tensors())
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        NativeBackend(directory, device="cpu")


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = make_tensors()
    tensors["model.norm.weight"] = torch.ones(32, dtype=torch.int8)
    with pytest.raises(UnsupportedError, match="I8"):
        NativeBackend(write(tmp_path / "m", tensors), device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp8"}, "compute"),
        ({"dtype": "nonsense"}, "element type"),
        ({"weights": "int3"}, "hold weights"),
        ({"device": "cuda:99"}, "device"),
        ({"device": "abacus"}, "device"),
        ({"kernels": "cuda"}, "kernels"),
        ({"kv_dtype": "int4"}, "KV cache"),
        ({"kv_tokens": 0}, "at least one block"),
        ({"context": 10_000}, "context"),
    ],
)
def test_options_that_cannot_be_met_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnsupportedError), match=message):
        NativeBackend.from_random(CONFIG, **{"device": "cpu", **options})


def test_a_cache_beyond_memory_is_a_clean_error() -> None:
    with pytest.raises(CapacityError, match="KV cache does not fit"):
        NativeBackend.from_random(CONFIG, device="cpu", kv_tokens=10**15)


def test_unknown_names_are_not_found(tmp_path: Path) -> None:
    for name in ("no-such-model", str(tmp_path / "nothing"), "x.gguf"):
        with pytest.raises(NotFoundError):
            NativeBackend(name)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "moe": (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        "mixture of experts",
    ),
    "dynamic-rope": (
        {"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "rotary scaling 'dynamic'",
    ),
    "activation": ({"hidden_act": "quick_gelu"}, "activation 'quick_gelu'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_by_name(name: str) -> None:
    fields, message = REFUSED[name]
    with pytest.raises(UnsupportedError, match=message):
        NativeBackend.from_random({**CONFIG, **fields}, device="cpu")


def test_mamba_and_latent_attention_are_refused_by_name() -> None:
    for model, kind in (("deepseek-ai/DeepSeek-V2-Lite", "mla"), ("ibm-granite/granite-4.0-h-tiny", "mamba")):
        with pytest.raises(UnsupportedError, match=kind):
            NativeBackend.from_random(model, device="cpu")


def test_a_type_never_compared_with_its_reference_loads_random_weights_only(tmp_path: Path) -> None:
    config = {**CONFIG, "model_type": "orion", "tie_word_embeddings": False}
    NativeBackend.from_random(config, device="cpu")
    with pytest.raises(UnsupportedError, match="not been checked"):
        NativeBackend(write(tmp_path / "m", make_tensors(), config), device="cpu")


# Random weights, generation limits, memory.


def test_random_weights_are_reproducible_and_finite() -> None:
    first, again, other = (
        NativeBackend.from_random(CONFIG, device="cpu", dtype="fp32", seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(logits(first), logits(again))
    assert not torch.equal(logits(first), logits(other))
    assert torch.isfinite(logits(first)).all()
    assert 0.1 < float(logits(first).std()) < 10


def test_random_weights_stay_finite_through_many_layers() -> None:
    deep = {**CONFIG, "num_hidden_layers": 80, "tie_word_embeddings": True}
    backend = NativeBackend.from_random(deep, device="cpu", dtype="bf16")
    assert torch.isfinite(logits(backend)).all()


def test_prompts_that_cannot_be_run_are_refused_before_any_work() -> None:
    backend = NativeBackend.from_random(CONFIG, device="cpu", kv_tokens=64)
    few = SamplingParams(max_tokens=8, temperature=0)
    with pytest.raises(CapacityError, match=r"250 tokens.*8 new.*256"):
        backend.generate([[1] * 250], few)
    with pytest.raises(CapacityError, match=r"KV cache.*64 tokens"):
        backend.generate([[1] * 60], few)
    with pytest.raises(InputError, match="empty"):
        backend.generate([[]], few)
    with pytest.raises(InputError, match="outside the vocabulary"):
        backend.generate([[96]], few)
    with pytest.raises(InputError, match="no tokenizer"):
        backend.generate(["text"], few)


def test_generation_ends_at_a_stop_token_or_at_its_length() -> None:
    backend = NativeBackend.from_random(CONFIG, device="cpu", dtype="fp32")
    plain = backend.generate([[1, 2, 3]], SamplingParams(max_tokens=8, temperature=0))[0]
    assert plain.finish_reason == "length"
    assert len(plain.tokens) == 8
    stop = plain.token_ids[2]
    params = SamplingParams(max_tokens=8, temperature=0, stop_token_ids=(stop,))
    ended = backend.generate([[1, 2, 3]], params)[0]
    assert ended.finish_reason == "stop"
    assert ended.token_ids == plain.token_ids[: plain.token_ids.index(stop) + 1]


PEAK = """
import resource, sys
import torch
torch.set_num_threads(1)
from rooflens.runtime import NativeBackend
NativeBackend(sys.argv[2], device="cpu")
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
backend = NativeBackend(sys.argv[1], device="cpu", kv_tokens=16)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((peak - base) * 1024 / backend.report.held_bytes)
"""


def test_loading_needs_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    # 60 million parameters in bf16, 20 of them in the table.
    config = {**CONFIG, "vocab_size": 40_000, "hidden_size": 512, "intermediate_size": 2048}
    config |= {"num_hidden_layers": 8, "torch_dtype": "bfloat16"}
    shapes = checkpoint_tensors(read_spec(config, name="m"))
    large = {name: torch.full(shape, 0.01, dtype=torch.bfloat16) for name, shape in shapes}
    directory = write(tmp_path / "large", large, config)
    small = write(tmp_path / "small", make_tensors())
    result = subprocess.run(
        [sys.executable, "-c", PEAK, str(directory), str(small)], capture_output=True, text=True, check=True
    )
    shutil.rmtree(directory)
    assert float(result.stdout) <= 1.3
