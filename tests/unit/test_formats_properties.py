"""What holds for every format and every model: more bits are more bytes, and nothing is lost on the way."""

from __future__ import annotations

from fractions import Fraction

import pytest
from formats_support import model
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflens.models.accounting import count_parameters, embedding_bytes, linear_bytes, weights_bytes
from rooflens.models.formats.apply import apply_format
from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.catalogue import find_format, format_names
from rooflens.models.formats.rewrite import rewrite
from rooflens.models.spec import layer_linears, layer_tensors

MODELS = (
    "meta-llama__Llama-2-7b-hf",
    "Qwen__Qwen2.5-0.5B",
    "Qwen__Qwen3-30B-A3B",
    "deepseek-ai__DeepSeek-V2-Lite",
    "openai__gpt-oss-20b",
    "google__gemma-3-1b-it",
)
SIZES = st.integers(min_value=1, max_value=5000)
FORMATS = st.builds(
    WeightFormat,
    name=st.just("x"),
    bits=st.integers(1, 32) | st.fractions(1, 8, max_denominator=256),
    group_size=st.sampled_from([0, -1, 16, 32, 64, 128]),
    scale_bits=st.sampled_from([0, 8, 16, 32]),
    zero_bits=st.sampled_from([0, 4, 8]),
    block=st.sampled_from([0, 128]),
    row_bits=st.sampled_from([0, 16, 32]),
    column_bits=st.sampled_from([0, 32]),
    tensor_bits=st.sampled_from([0, 32]),
    pads_rows_to=st.sampled_from([1, 32, 256]),
    flat=st.booleans(),
    nested_group=st.sampled_from([0, 256]),
    nested_bits=st.just(32),
)
quick = settings(deadline=None, max_examples=100)


@quick
@given(FORMATS, SIZES, SIZES)
def test_a_matrix_never_takes_less_than_its_bits(layout: WeightFormat, rows: int, columns: int):
    assert layout.matrix_bytes(rows, columns) * 8 >= layout.bits * rows * columns


@quick
@given(FORMATS, st.integers(1, 8), SIZES, SIZES)
def test_bytes_grow_with_bits_and_with_sizes(layout: WeightFormat, more: int, rows: int, columns: int):
    wider = WeightFormat(**{**vars(layout), "bits": layout.bits + more})
    size = layout.matrix_bytes(rows, columns)
    assert wider.matrix_bytes(rows, columns) > size or rows * columns * more < 8
    assert layout.matrix_bytes(rows + 1, columns) >= size
    assert layout.matrix_bytes(rows, columns + 1) >= size


@quick
@given(FORMATS, st.integers(1, 64), st.integers(1, 64))
def test_cutting_whole_blocks_of_rows_loses_no_bytes(layout: WeightFormat, first: int, second: int):
    columns, block = 512, 128
    whole = layout.matrix_bytes((first + second) * block, columns)
    assert layout.matrix_bytes(first * block, columns) + layout.matrix_bytes(second * block, columns) >= whole


@pytest.mark.parametrize("weights", format_names())
@pytest.mark.parametrize("name", MODELS)
def test_a_format_changes_no_parameter_and_keeps_groups_few(name: str, weights: str):
    spec, made = model(name), apply_format(model(name), weights)
    assert count_parameters(made).total == count_parameters(spec).total
    assert count_parameters(made).active == count_parameters(spec).active
    assert len(made.groups) <= 3 * len(spec.groups)
    assert sum(group.count for group in made.groups) == len(spec.layers)


@pytest.mark.parametrize("weights", ["q4_k_m", "iq3_xs", "awq", "nf4", "mxfp4"])
@pytest.mark.parametrize("name", MODELS)
def test_grouped_layers_weigh_as_much_as_one_by_one(name: str, weights: str):
    spec = apply_format(model(name), weights)
    vector = {"fp32": 4, None: 2}[spec.vector_dtype]
    element = {"fp32": 4, "bf16": 2, "fp16": 2, "int32": 4}
    total = 0
    for layer in spec.layers:
        total += sum(linear_bytes(linear, spec) * copies for _, linear, copies in layer_linears(layer))
        for _, tensor, copies in layer_tensors(layer):
            own = getattr(tensor, "dtype", None)
            elements = getattr(tensor, "elements", tensor.parameters)
            total += elements * copies * (element[own] if own else vector)
    assert spec.embedding is not None
    total += embedding_bytes(spec.embedding, spec)
    if spec.head is not None and not spec.tied:
        total += linear_bytes(spec.head, spec)
    total += spec.final_norm.parameters * vector if spec.final_norm else 0
    towers = sum((part.weight_bytes or part.parameters * 2) for part in spec.components if part.in_total)
    assert weights_bytes(spec) == total + towers


@pytest.mark.parametrize("name", MODELS)
def test_fewer_bits_are_fewer_bytes(name: str):
    order = ["bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "iq2_xs", "iq1_s"]
    sizes = [weights_bytes(apply_format(model(name), weights)) for weights in order]
    assert sizes == sorted(sizes, reverse=True)
    exl = [weights_bytes(apply_format(model(name), f"exl3-{bits}bpw")) for bits in (2, 2.5, 3, 4.25, 6, 8)]
    assert exl == sorted(exl)


def test_applying_a_format_twice_is_applying_it_once():
    once = apply_format(model(MODELS[0]), "q4_k_m")
    assert weights_bytes(apply_format(once, "q4_k_m")) == weights_bytes(once)
    assert weights_bytes(apply_format(once, "fp16")) == weights_bytes(model(MODELS[0]))


def test_an_unquantised_file_can_be_quantised():
    file = apply_format(model(MODELS[0]), "gguf-f16")
    assert weights_bytes(apply_format(file, "q4_k_m")) == weights_bytes(
        apply_format(model(MODELS[0]), "q4_k_m")
    )


def test_rewriting_with_nothing_returns_the_models_own_type():
    spec = rewrite(apply_format(model(MODELS[0]), "awq"), lambda matrix: None, per_layer=False)
    assert weights_bytes(spec) == weights_bytes(model(MODELS[0]))
    assert len(spec.groups) == 1
    assert all(layer is spec.layers[0] for layer in spec.layers)


def test_exl_bits_are_kept_as_fractions():
    scheme = find_format("exl3-4.65bpw")
    assert {made.bits for made in scheme.formats.values()} == {Fraction("4.65"), Fraction(6)}
