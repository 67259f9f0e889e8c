"""Small random models of the less common architectures, built with transformers on the meta device.

The total of their parameters must be ours; where ``names`` is set so must every tensor of the checkpoint
that transformers writes. A new family is added to ``CASES``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

from rooflens.models.accounting import count_parameters  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.models.tensors import checkpoint_tensors  # noqa: E402

Shapes = Callable[[random.Random], dict[str, Any]]


def latent(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([2, 4])
    return {
        "vocab_size": rng.choice([96, 160]),
        "hidden_size": heads * rng.choice([16, 24]),
        "intermediate_size": rng.choice([40, 72]),
        "moe_intermediate_size": rng.choice([16, 24]),
        "num_hidden_layers": rng.choice([3, 4]),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": rng.choice([16, 20]),
        "q_lora_rank": rng.choice([24, 28]),
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": rng.choice([8, 16]),
        "v_head_dim": rng.choice([8, 24]),
        "n_routed_experts": rng.choice([4, 8]),
        "n_shared_experts": rng.choice([1, 2]),
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": rng.choice([1, 2]),
        "attention_bias": rng.choice([True, False]),
        "index_topk": 8,
        "index_head_dim": 16,
        "index_n_heads": rng.choice([2, 4]),
    }


def plain_query(rng: random.Random) -> dict[str, Any]:
    return latent(rng) | {"q_lora_rank": None}


def compressed(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([4, 8])
    layers = rng.choice([4, 5])
    return {
        "vocab_size": 96,
        "hidden_size": rng.choice([32, 48]),
        "moe_intermediate_size": rng.choice([16, 24]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": rng.choice([16, 32]),
        "q_lora_rank": 24,
        "o_groups": rng.choice([2, 4]),
        "o_lora_rank": 8,
        "n_routed_experts": rng.choice([4, 8]),
        "num_experts_per_tok": 2,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 8,
        "hc_mult": rng.choice([2, 4]),
        "num_hash_layers": rng.choice([0, 2]),
        "compress_ratios": [rng.choice([0, 4, 128]) for _ in range(layers + 1)],
    }


# model_type, shapes, whether the checkpoint's tensors are compared too
CASES: list[tuple[str, Shapes, bool]] = [
    ("deepseek_v2", latent, True),
    ("deepseek_v2", plain_query, True),
    ("deepseek_v3", latent, True),
    ("deepseek_v32", latent, True),
    ("deepseek_v4", compressed, False),
]


def build(config: Any, *, device: str) -> Any:
    """The model of ``config`` as whichever kind of model transformers knows it."""
    kinds = (
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForImageTextToText,
        transformers.AutoModelForMultimodalLM,
        transformers.AutoModelForSeq2SeqLM,
        transformers.AutoModelForMaskedLM,
        transformers.AutoModel,
    )
    for kind in kinds:
        if type(config) in kind._model_mapping:
            with torch.device(device):
                return kind.from_config(config)
    raise AssertionError(f"transformers builds no model of {config.model_type}")


def saved_tensors(model: Any, folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint that transformers writes, in the hub's own names."""
    from safetensors import safe_open

    model.save_pretrained(folder)
    found: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                found[name] = tuple(file.get_slice(name).get_shape())
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("model_type", "shapes", "names"), CASES, ids=lambda x: getattr(x, "__name__", None))
def test_a_random_model_counts_equal(
    model_type: str, shapes: Shapes, names: bool, seed: int, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(model_type, **shapes(random.Random(seed)))
    model = build(config, device="meta")
    fields = json.loads(json.dumps(config.to_dict(), default=str))
    spec = read_spec(fields, name=model_type)
    assert count_parameters(spec).total == sum(x.numel() for x in model.parameters())
    if names and seed == 0:
        saved = saved_tensors(build(config, device="cpu").to(torch.bfloat16), tmp_path)
        assert dict(checkpoint_tensors(spec)) == saved
