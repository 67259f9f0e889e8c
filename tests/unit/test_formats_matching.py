"""Patterns of quantisation configs against module names."""

from __future__ import annotations

import pytest

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.formats.matching import ByModule, Patterns, pattern_list
from rooflens.models.formats.rewrite import Matrix, Role


def matrix(module: str, copies: int = 1) -> Matrix:
    return Matrix(Role.LINEAR, module, module, 1, 1, copies)


def matches(pattern: str, module: str, copies: int = 1) -> bool:
    return Patterns([pattern], field="ignore").match(matrix(module, copies))


@pytest.mark.parametrize(
    ("pattern", "module"),
    [
        ("lm_head", "lm_head"),
        ("lm_head", "language_model.lm_head"),
        ("language_model.lm_head", "lm_head"),
        ("gate", "model.layers.3.mlp.gate"),
        ("mlp.gate", "model.layers.3.mlp.gate"),
        ("model.layers.1", "model.layers.1.self_attn.q_proj"),
        ("model.layers.3.mlp", "language_model.model.layers.3.mlp.gate_proj"),
        ("model.layers.*.self_attn", "model.layers.12.self_attn.o_proj"),
        ("model.layers.0*", "model.language_model.layers.0.self_attn.q_proj"),
        ("*.mlp.shared_expert.*", "model.layers.3.mlp.shared_expert.up_proj"),
        ("*self_attn*", "model.layers.3.self_attn.q_proj"),
        ("re:.*self_attn.*", "model.layers.3.self_attn.q_proj"),
        ("re:.*lm_head", "lm_head"),
        (r"re:model\.layers\.\d+\.mlp\.gate$", "language_model.model.layers.3.mlp.gate"),
        ("model.layers.0.self_attn.indexers_proj", "model.layers.0.self_attn.indexer.weights_proj"),
        ("model.layers.0.mlp.experts.0", "model.layers.0.mlp.experts.gate_up_proj"),
    ],
)
def test_matches(pattern: str, module: str):
    assert matches(pattern, module)


@pytest.mark.parametrize(
    ("pattern", "module"),
    [
        ("gate", "model.layers.3.mlp.gate_proj"),
        ("model.layers.1", "model.layers.10.self_attn.q_proj"),
        ("model.layers.1*", "model.layers.10.self_attn.q_proj"),
        ("model.layers.1.*", "model.layers.10.self_attn.q_proj"),
        ("layers.1.mlp", "model.layers.1.self_attn.q_proj"),
        ("vision_model.model.layers.0.self_attn.q_proj", "language_model.model.layers.0.self_attn.q_proj"),
        (r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "model.layers.3.mlp.experts.0.gate_proj"),
        ("re:mlp", "model.layers.3.mlp.gate"),
        ("mtp*", "model.layers.3.mlp.gate"),
    ],
)
def test_does_not_match(pattern: str, module: str):
    assert not matches(pattern, module)


def test_experts_are_matched_all_alike_or_refused():
    assert matches("model.layers.0.mlp.experts", "model.layers.0.mlp.experts.{e}.up_proj", copies=4)
    with pytest.raises(UnsupportedError, match="tells the experts of one layer apart"):
        matches("model.layers.0.mlp.experts.0", "model.layers.0.mlp.experts.{e}.up_proj", copies=4)


def test_values_by_module_hold_for_what_is_in_it():
    named = ByModule({"layers.0.ffn.experts": 4, "model.layers.0.ffn.w1": 8}, field="quantized_layers")
    assert named.get(matrix("layers.0.ffn.experts.{e}.w2", copies=3)) == 4
    assert named.get(matrix("layers.0.ffn.w1")) == 8
    assert named.get(matrix("layers.1.ffn.w1")) is None
    uneven = ByModule({"layers.0.experts.1.w1": 4}, field="quantized_layers")
    with pytest.raises(UnsupportedError, match="tells the experts"):
        uneven.get(matrix("layers.0.experts.{e}.w1", copies=2))


def test_broken_lists_are_refused():
    with pytest.raises(InputError, match="ignore is not a list of module names"):
        pattern_list("lm_head", field="ignore")
    with pytest.raises(InputError, match="invalid regular expression"):
        Patterns(["re:("], field="ignore")
    assert pattern_list(None, field="ignore") == []
