"""Rotary frequencies of every scaling rule against transformers' own functions, and the rotation by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rooflens.errors import InputError, UnsupportedError  # noqa: E402
from rooflens.models.families.common import freeze  # noqa: E402
from rooflens.models.spec import Rotary  # noqa: E402
from rooflens.runtime.blocks.rotary import RotaryTable, inverse_frequencies  # noqa: E402
from rooflens.runtime.kernels.eager import EagerKernels  # noqa: E402

DIM, THETA, ORIGINAL = 16, 10000.0, 64
SHORT, LONG = [1.0 + 0.1 * i for i in range(8)], [2.0 + 0.5 * i for i in range(8)]
RULES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn-fast-slow": {
        "rope_type": "yarn",
        "factor": 16.0,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "mscale": 0.707,
        "mscale_all_dim": 0.9,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn-untruncated": {
        "rope_type": "yarn",
        "factor": 32.0,
        "truncate": False,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "attention_factor": 1.5,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
    },
}


def rotary(rule: dict[str, Any] | None = None, *, interleaved: bool = False) -> Rotary:
    return Rotary(DIM, THETA, freeze(rule) if rule else (), interleaved)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("context", [ORIGINAL, 4 * ORIGINAL])
def test_frequencies_equal_those_of_transformers(name: str, context: int) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rule = RULES[name]
    config = transformers.LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=4 * ORIGINAL,
        rope_parameters={**rule, "rope_theta": THETA},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[rule["rope_type"]](config, torch.device("cpu"), seq_len=context)
    ours, own_factor = inverse_frequencies(rotary(rule), context=context)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
    assert own_factor == pytest.approx(factor)


def test_longrope_is_decided_once_by_the_context() -> None:
    rule = RULES["longrope"]
    plain, _ = inverse_frequencies(rotary(), context=None)
    short, _ = inverse_frequencies(rotary(rule), context=ORIGINAL)
    long, factor = inverse_frequencies(rotary(rule), context=ORIGINAL + 1)
    torch.testing.assert_close(short, plain / torch.tensor(SHORT))
    torch.testing.assert_close(long, plain / torch.tensor(LONG))
    # sqrt(1 + ln 4 / ln 64) = sqrt(1 + 1/3)
    assert factor == pytest.approx(math.sqrt(4 / 3))


@pytest.mark.parametrize(
    ("rule", "error", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, UnsupportedError, "dynamic"),
        ({"rope_type": "linear"}, InputError, "lacks factor"),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 64},
            InputError,
            "one factor per pair",
        ),
    ],
)
def test_rules_that_cannot_be_used(rule: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        inverse_frequencies(rotary(rule), context=None)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_rotation_by_hand(interleaved: bool) -> None:
    table = RotaryTable(rotary(interleaved=interleaved), context=None)
    positions = torch.tensor([0, 3, 700])  # past the table's first rows: it grows
    x = torch.randn(3, 2, DIM + 4, generator=torch.Generator().manual_seed(0))
    cos, sin = table(positions, 701, x)
    got = EagerKernels().rotate(x, cos, sin, interleaved=interleaved)
    assert torch.equal(got[..., DIM:], x[..., DIM:])  # features past the rotated ones are kept
    for row, position in enumerate(positions.tolist()):
        for pair in range(DIM // 2):
            a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + DIM // 2)
            angle = position * THETA ** (-2 * pair / DIM)
            first, second = x[row, :, a], x[row, :, b]
            want = first * math.cos(angle) - second * math.sin(angle)
            torch.testing.assert_close(got[row, :, a], want, rtol=1e-3, atol=1e-3)
            want = second * math.cos(angle) + first * math.sin(angle)
            torch.testing.assert_close(got[row, :, b], want, rtol=1e-3, atol=1e-3)
