"""Checkpoints that transformers writes: every tensor is found, every byte counted, for many families."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # the small configs

from gguf_models import converted

from rooflens.models.accounting import count_parameters, weights_bytes
from rooflens.models.read import read_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILIES = [
    "llama31", "mixtral", "qwen2moe", "qwen3next", "gemma3n", "gpt-oss", "deepseek3", "deepseek32", "mamba2",
    "jamba", "nemotron_h_moe", "falcon-h1", "granitehybrid", "lfm2moe", "bloom", "gpt2", "falcon40b", "dbrx",
    "olmo3", "minimax-m2", "mimo2", "stablelm", "command-r-plus", "apertus",
]  # fmt: skip

TEXT = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 4096,
    "pad_token_id": 0,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
MULTIMODAL: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": TEXT, "vision_config": {**VISION, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
    },
    "llava": {
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**VISION, "model_type": "clip_vision_model", "projection_dim": 32},
        "image_token_index": 319,
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
        "vision_config": {
            "depth": 2, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2, "intermediate_size": 48,
            "fullatt_block_indexes": [1],
        },
    },
}  # fmt: skip


def check(model: Any, folder: Path) -> None:
    """Save ``model`` in 16 bits, read it back, and compare what is counted with what it has."""
    model.to(torch.bfloat16).save_pretrained(folder)
    spec = read_model(folder)
    assert spec.stored is not None
    # Cast to 16 bits, a router's correction is no longer in the 32 that it is published in.
    assert [x.text for x in spec.stored.findings if x.kind != "dtype" or "bias" not in x.text] == []
    assert count_parameters(spec).total == sum(p.numel() for p in model.parameters())
    assert weights_bytes(spec) == spec.stored.model_bytes == spec.stored.tensor_bytes


@pytest.mark.parametrize("name", FAMILIES)
def test_a_language_model(name: str, tmp_path: Path) -> None:
    # transformers neither makes nor saves the layers that predict further tokens.
    fields = {"num_nextn_predict_layers": 0, **converted()[name]["config"]}
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    check(transformers.AutoModelForCausalLM.from_config(config), tmp_path)


@pytest.mark.parametrize("name", MULTIMODAL)
def test_a_model_with_images(name: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(name, **MULTIMODAL[name])
    check(transformers.AutoModelForImageTextToText.from_config(config), tmp_path)
