"""What the runtime runs: every bundled model is either run or refused by name, and no field is overlooked."""

from __future__ import annotations

from dataclasses import fields

import pytest

pytest.importorskip("torch")

from rooflens.errors import UnsupportedError
from rooflens.models import spec as description
from rooflens.models.bundled import bundled_models
from rooflens.models.read import read_model
from rooflens.runtime.support import check_supported

# Fields that the runtime computes with, refuses by name, or needs not know. A new field of the spec
# belongs here only once one of these is true of it: an overlooked one would be wrong numbers, silently.
KNOWN = {
    "Part": "source out_features weight_format layout",
    "Linear": "name in_features parts bias shard transposed bare borrowed",
    "Norm": "name size kind eps bias affine offset source groups borrowed dtype",
    "Rotary": "dim theta scaling interleaved",
    "Attention": "heads kv_heads head_dim linears v_head_dim norms parameters rotary window chunked causal "
    "cached shares_kv value_is_key cross_tokens scale logit_softcap qkv_clip sinks alibi norm_after_rotary "
    "indexer_key_dim indexer_heads indexer_top_k",
    "DenseMlp": "intermediate_size linears activation gated norms",
    "Layer": "mixers mlp norms parallel linears parameters residual_scale extra_mlp",
    "Embedding": "rows dim source scale weight_format",
}


@pytest.mark.parametrize("name", KNOWN)
def test_no_field_of_the_spec_is_overlooked(name: str) -> None:
    assert {field.name for field in fields(getattr(description, name))} == set(KNOWN[name].split())


def refusal(name: str) -> str | None:
    """What the runtime says to a bundled model, None where it runs it."""
    try:
        check_supported(read_model(name))
    except UnsupportedError as error:
        return error.what
    return None


def test_every_bundled_model_is_run_or_refused_by_name() -> None:
    run = set()
    for model in bundled_models():
        spec, said = read_model(model.id), refusal(model.id)
        if said is None:
            run.add(spec.model_type)
        else:
            assert f"cannot run {spec.name} ({spec.model_type}): " in said
    assert {"llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text"} <= run
    assert not run & {"deepseek_v3", "mixtral", "gpt_oss", "mamba", "gpt2", "bloom", "opt"}
