"""Kernel sets: packing is tried before it is trusted, the fallback works, attention equals brute force."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rooflens.errors import InputError, UnsupportedError  # noqa: E402
from rooflens.models.families.registry import read_spec  # noqa: E402
from rooflens.runtime.batch import Chunk, StepBatch  # noqa: E402
from rooflens.runtime.kernels import (  # noqa: E402
    AttentionSettings,
    cpu,
    kernels_for,
    paged_attention,
)
from rooflens.runtime.kernels.cuda import CudaKernels  # noqa: E402
from rooflens.runtime.kv_cache import PagedKVCache  # noqa: E402
from rooflens.runtime.native.build import BuildError  # noqa: E402
from rooflens.runtime.native.library import load  # noqa: E402

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_packed_linears_multiply(dtype: Any, bias: bool, rows: int) -> None:
    weight, x = random(48, 32).to(dtype), random(rows, 32, seed=1).to(dtype)
    offset = random(48, seed=2).to(dtype) if bias else None
    packed = kernels_for(CPU).pack(weight, offset)
    expected = x.float() @ weight.float().T + (0 if offset is None else offset.float())
    assert (packed.apply(x).float() - expected).abs().max() <= (1e-5 if dtype == torch.float32 else 0.1)
    assert (packed.out_features, packed.in_features) == (48, 32)


def test_without_the_private_operators_linears_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(weight: Any, bias: Any) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(cpu, "OneDnnLinear", missing)
    cpu.onednn_packs.cache_clear()
    try:
        kernels = kernels_for(CPU, name="cpu")
        packed = kernels.pack(random(8, 4), None)
        assert packed.holding == "float32"
        assert kernels.describe()["linear"] == "float32"
        assert torch.allclose(packed.apply(torch.eye(4)), random(8, 4).T)
    finally:
        cpu.onednn_packs.cache_clear()


def test_a_packing_that_multiplies_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(cpu.OneDnnLinear):
        def apply(self, x: Any) -> Any:
            return super().apply(x) * 1.5

    monkeypatch.setattr(cpu, "OneDnnLinear", Wrong)
    cpu.onednn_packs.cache_clear()
    try:
        assert not cpu.onednn_packs(torch.float32)
    finally:
        cpu.onednn_packs.cache_clear()


def test_sets_by_name() -> None:
    assert [kernels_for(CPU, name=name).name for name in ("eager", "cpu")] == ["eager", "cpu"]
    with pytest.raises(InputError, match="eager, cpu, native"):
        kernels_for(CPU, name="cuda")


def test_without_c_kernels_torch_is_used_and_the_reason_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLENS_NATIVE", "0")
    load.cache_clear()
    try:
        kernels = kernels_for(CPU)
        assert kernels.name == "cpu"
        assert kernels.describe()["native"].startswith("not used: the C kernels are switched off")
        with pytest.raises(BuildError, match="ROOFLENS_NATIVE"):
            kernels_for(CPU, name="native")
    finally:
        load.cache_clear()


def test_int4_needs_groups_and_quantised_weights_a_cpu() -> None:
    with pytest.raises(UnsupportedError, match="groups of 32"):
        kernels_for(CPU, name="cpu").pack(random(16, 48), None, holding="int4")
    with pytest.raises(UnsupportedError, match="CPU only"):
        kernels_for(CPU).pack(torch.empty(16, 64, device="meta"), None, holding="int8")
    with pytest.raises(UnsupportedError, match="only the C kernels"):
        kernels_for(CPU, name="cpu").pack(random(16, 64), None, holding="int4-symmetric")


def test_activations_by_hand() -> None:
    kernels = kernels_for(CPU)
    x = torch.tensor([[1.0, -2.0, 3.0, 0.5]])
    assert kernels.activate(x, activation="relu2", gated=False).tolist() == [[1.0, 0.0, 9.0, 0.25]]
    silu = 1 / (1 + math.exp(-1))
    got = kernels.activate(x, activation="silu", gated=True)[0]
    assert got[0] == pytest.approx(3 * silu)
    with pytest.raises(UnsupportedError, match="abacus"):
        kernels.activate(x, activation="abacus", gated=False)


def test_norms_in_fp32_beside_bf16() -> None:
    kernels = kernels_for(CPU)
    x = random(3, 16).to(torch.bfloat16)
    weight = 1 + random(16, seed=1)
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weight
    got = kernels.norm(x, weight, None, kind="rms", eps=1e-6)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, wide.to(torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("weighted", [True, False])
def test_root_mean_square_norm_in_bf16_is_exact_but_for_its_rounding(rows: int, weighted: bool) -> None:
    # A constant part: were the mean taken off, as a layer norm does, nothing would agree.
    x = (3 + random(rows, 96)).to(torch.bfloat16)
    weight, bias = (random(96, seed=seed).to(torch.bfloat16) for seed in (1, 2))
    wide = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    if weighted:
        wide = wide * weight.double() + bias.double()
    got = kernels_for(CPU, name="cpu").norm(
        x, weight if weighted else None, bias if weighted else None, kind="rms", eps=1e-6
    )
    assert got.dtype == torch.bfloat16
    # Three roundings to 8 bits of mantissa at most: of the normalised value, its multiple, and the sum.
    torch.testing.assert_close(got.double(), wide, rtol=3 / 256, atol=3 / 256)


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 64])
def test_a_tile_of_a_prefill_is_large_enough_and_not_too_large(group: int) -> None:
    rows = paged_attention.tile_rows(group)
    assert rows % 16 == 0
    assert 16 <= rows <= paged_attention.MOST_QUERY_ROWS
    assert rows == 16 or rows * group <= paged_attention.TILE_ROWS


def brute_force(query: Any, key: Any, value: Any, *, start: int, settings: AttentionSettings) -> Any:
    """One loop per query, head and visible token."""
    output = torch.zeros(query.shape[0], settings.heads, settings.head_dim)
    for row in range(query.shape[0]):
        position = start + row
        first = 0 if settings.window is None else max(0, position - settings.window + 1)
        for head in range(settings.heads):
            shared = head // settings.group
            scores = key[first : position + 1, shared] @ query[row, head] * settings.scale
            if settings.softcap is not None:
                scores = settings.softcap * torch.tanh(scores / settings.softcap)
            output[row, head] = torch.softmax(scores, 0) @ value[first : position + 1, shared]
    return output.flatten(1)


@settings(max_examples=40, deadline=None)
@given(
    kv_heads=st.sampled_from([1, 2]),
    group=st.sampled_from([1, 3]),
    window=st.sampled_from([None, 1, 5, 16, 40]),
    softcap=st.sampled_from([None, 2.0]),
    parts=st.lists(st.tuples(st.integers(0, 90), st.sampled_from([1, 1, 2, 17, 70])), min_size=1, max_size=4),
    data=st.data(),
)
def test_attention_equals_brute_force(
    kv_heads: int,
    group: int,
    window: int | None,
    softcap: float | None,
    parts: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    """Any mix of prefixes and chunks, blocks in any order, against causal x group x window x soft cap."""
    head_dim = 8
    own = AttentionSettings(kv_heads * group, kv_heads, head_dim, head_dim**-0.5, window, softcap)
    fields = {"model_type": "llama", "vocab_size": 8, "hidden_size": 8 * own.heads, "intermediate_size": 8}
    fields |= {"num_hidden_layers": 1, "num_attention_heads": own.heads, "num_key_value_heads": kv_heads}
    needed = [-(-(start + count) // 16) for start, count in parts]
    order = data.draw(st.permutations(range(sum(needed))))
    spec = read_spec(fields, name="tiny")
    cache = PagedKVCache(spec, blocks=len(order), dtype="fp32", compute_dtype=torch.float32)
    chunks, queries, expected = [], [], []
    for number, ((start, count), blocks) in enumerate(zip(parts, needed, strict=True)):
        table, order = list(order[:blocks]), order[blocks:]
        key, value = (random(start + count, kv_heads, head_dim, seed=10 * number + i) for i in (1, 2))
        query = random(count, own.heads, head_dim, seed=10 * number + 3)
        slots = torch.tensor([table[p // 16] * 16 + p % 16 for p in range(start + count)])
        cache.write(0, key, value, slots)
        chunks.append(Chunk([0] * count, start, table))
        queries.append(query)
        expected.append(brute_force(query, key, value, start=start, settings=own))
    with pytest.MonkeyPatch.context() as patch:
        # Sizes that these short sequences reach.
        for limit, value in {"MOST_QUERY_ROWS": 16, "FOLDED_TOKENS": 20, "FOLDED_GROUP": 3}.items():
            patch.setattr(paged_attention, limit, value)
        for kernels in (kernels_for(CPU, name="eager"), kernels_for(CPU, name="cpu"), CudaKernels()):
            got = kernels.attend(torch.cat(queries), cache, 0, StepBatch.build(chunks), own)
            torch.testing.assert_close(got, torch.cat(expected), rtol=1e-4, atol=1e-5)
