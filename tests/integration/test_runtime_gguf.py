"""GGUF files written from transformers' weights by the ``gguf`` package: names, row order, offsets, types.

Tensor names come from that package's own map, the transformations from llama.cpp's converter; what is
read back must compute what transformers computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")

from runtime_models import LLAMA3, assert_close, make_reference, random_prompt, reference_logits  # noqa: E402

from rooflens.errors import InputError, NotFoundError, UnsupportedError  # noqa: E402
from rooflens.runtime import NativeBackend  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402

torch.set_num_threads(1)

CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}, gguf.MODEL_ARCH.LLAMA),
    "llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}, gguf.MODEL_ARCH.LLAMA),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}, gguf.MODEL_ARCH.QWEN2),
    "qwen3": ("Qwen3Config", {"head_dim": 32}, gguf.MODEL_ARCH.QWEN3),
    "gemma": ("GemmaConfig", {"head_dim": 32}, gguf.MODEL_ARCH.GEMMA),
    "gemma2": (
        "Gemma2Config",
        {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32, "num_hidden_layers": 4},
        gguf.MODEL_ARCH.GEMMA2,
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32, "num_hidden_layers": 7},
        gguf.MODEL_ARCH.GEMMA3,
    ),
}


def interleave(weight: Any, heads: int) -> Any:
    """llama.cpp's order of the rows of q and k under ``llama``: the two halves of a head alternate."""
    return weight.view(heads, 2, -1, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def llama3_factors(config: Any) -> Any:
    """The factors that llama.cpp's converter puts into ``rope_freqs.weight``."""
    rope = LLAMA3
    old, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = old / rope["low_freq_factor"], old / rope["high_freq_factor"]
    dim = config.hidden_size // config.num_attention_heads
    factors = []
    for index in range(0, dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(factor)
        else:
            smooth = (old / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def write_gguf(
    path: Path, model: Any, arch: Any, *, kind: Any = None, change: Callable[[str, Any], Any] | None = None
) -> Path:
    """``model`` as a GGUF file; matrices in type ``kind``, vectors in fp32."""
    config = model.config
    name = gguf.MODEL_ARCH_NAMES[arch]
    writer = gguf.GGUFWriter(path, name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if arch in (gguf.MODEL_ARCH.GEMMA2, gguf.MODEL_ARCH.GEMMA3):
        writer.add_sliding_window(config.sliding_window)
    if arch == gguf.MODEL_ARCH.GEMMA2:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = value.clone()
        if arch == gguf.MODEL_ARCH.LLAMA and "q_proj" in key:
            weight = interleave(weight, config.num_attention_heads)
        if arch == gguf.MODEL_ARCH.LLAMA and "k_proj" in key:
            weight = interleave(weight, config.num_key_value_heads)
        if name.startswith("gemma") and key.endswith("norm.weight"):
            weight = weight + 1
        stored = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert stored is not None, key
        if change is not None:
            weight = change(stored, weight)
        if weight is None:
            continue
        array = weight.numpy()
        if kind is not None and array.ndim == 2:
            writer.add_tensor(stored, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(backend: NativeBackend, tokens: list[int]) -> Any:
    blocks = list(range(-(-len(tokens) // 16)))
    return backend.step(StepBatch.build([Chunk(tokens, 0, blocks, sample=len(tokens))]))


@pytest.mark.parametrize("case", CASES)
def test_every_architecture_computes_what_transformers_computes(tmp_path: Path, case: str) -> None:
    config_class, fields, arch = CASES[case]
    model = make_reference(config_class, fields, tmp_path / "hf")
    backend = NativeBackend(write_gguf(tmp_path / "m.gguf", model, arch), device="cpu", dtype="fp32")
    tokens = random_prompt(90, seed=1)
    assert_close(logits(backend, tokens), reference_logits(model, tokens))
    assert backend.report.dequantized == {}


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_every_type_is_expanded_to_what_the_package_says(tmp_path: Path, kind: str) -> None:
    model = make_reference("Qwen2Config", CASES["qwen2"][1] | {"intermediate_size": 128}, tmp_path / "hf")
    stored = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "m.gguf", model, gguf.MODEL_ARCH.QWEN2, kind=stored)
    backend = NativeBackend(path, device="cpu", dtype="fp32")
    state = {}
    for key, value in model.state_dict().items():
        if value.ndim == 2:
            packed = gguf.quants.quantize(value.numpy(), stored)
            value = torch.from_numpy(gguf.quants.dequantize(packed, stored))
        state[key] = value
    model.load_state_dict(state)
    tokens = random_prompt(40, seed=2)
    assert_close(logits(backend, tokens), reference_logits(model, tokens))
    floats = kind in ("F16", "BF16")
    assert set(backend.report.dequantized) == (set() if floats else {kind})


def written(tmp_path: Path, change: Callable[[str, Any], Any]) -> Path:
    model = make_reference("LlamaConfig", {"tie_word_embeddings": False}, tmp_path / "hf")
    return write_gguf(tmp_path / "m.gguf", model, gguf.MODEL_ARCH.LLAMA, change=change)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, lambda name, value: None if name == "blk.1.ffn_up.weight" else value)
    with pytest.raises((InputError, NotFoundError), match=r"up_proj|ffn_up"):
        NativeBackend(path, device="cpu")


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, lambda name, value: value[:, :32] if name == "blk.1.ffn_up.weight" else value)
    with pytest.raises(InputError, match="ffn_up"):
        NativeBackend(path, device="cpu")


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    def damage(name: str, value: Any) -> Any:
        if name == "blk.2.attn_v.weight":
            value[0, 0] = float("nan")
        return value

    with pytest.raises(InputError, match="not finite"):
        NativeBackend(written(tmp_path, damage), device="cpu")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "abacus")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="abacus"):
        NativeBackend(tmp_path / "m.gguf")
