"""A GGUF file as a model: its description from the metadata, every byte from the header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rooflens.models.accounting import weights_bytes
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.models.families.registry import read_spec
from rooflens.models.file_input import quoted, some
from rooflens.models.formats.base import WeightFormat
from rooflens.models.gguf_config import spec_from_gguf_metadata
from rooflens.models.headers.gguf_match import holding_format, match_gguf, plain_dtype
from rooflens.models.headers.gguf_names import stored_ways
from rooflens.models.headers.match import Holding, Match
from rooflens.models.headers.retype import vector_types, with_stored_types
from rooflens.models.headers.rows import report
from rooflens.models.headers.slots import Slot
from rooflens.models.headers.towers import with_predictors
from rooflens.models.spec import ModelSpec
from rooflens.models.stored import Finding, finding
from rooflens.units import format_bytes

#: general.file_type -> the name that llama.cpp's quantize tool knows it by (``enum llama_ftype``).
FILE_TYPES: dict[int, str] = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_k",
    11: "q3_k_s", 12: "q3_k_m", 13: "q3_k_l", 14: "q4_k_s", 15: "q4_k_m", 16: "q5_k_s", 17: "q5_k_m",
    18: "q6_k", 19: "iq2_xxs", 20: "iq2_xs", 21: "q2_k_s", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s",
    25: "iq4_nl", 26: "iq3_s", 27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m",
    32: "bf16", 36: "tq1_0", 37: "tq2_0", 38: "mxfp4_moe", 39: "nvfp4", 40: "q1_0", 41: "q2_0",
}  # fmt: skip
#: Set in the file type where a tool guessed it from the tensors.
_GUESSED = 1024
_PLAIN = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}


def gguf_model(checkpoint: Checkpoint, *, name: str) -> ModelSpec:
    """The model of a GGUF checkpoint, called ``name``.

    Raises UnsupportedError for an architecture that is not covered, InputError for metadata that cannot be
    used or that the tensors contradict.
    """
    shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    fields = spec_from_gguf_metadata(checkpoint.metadata, tensors=shapes)
    spec = read_spec(fields, name=name, where=checkpoint.files[0].name)
    match = match_gguf(spec, checkpoint)
    typed = _typed(spec, match, checkpoint)
    predicted = sum(tensor.elements for tensor in match.predictors)
    made = with_predictors(typed, match.predictors, parameters=predicted)
    return replace(
        made,
        stored=report(
            match, checkpoint, described=spec, config_bytes=None, findings=_findings(made, match, checkpoint)
        ),
        notes=(*made.notes, _origin(checkpoint)),
        evidence={**made.evidence, "weights": "exact"},
    )


def _origin(checkpoint: Checkpoint) -> str:
    own = checkpoint.metadata.get("general.name")
    called = f", calls itself {quoted(own)}" if isinstance(own, str) and own.strip() else ""
    return f"read from a GGUF file: architecture {checkpoint.metadata['general.architecture']}{called}"


def _file_type(checkpoint: Checkpoint) -> str | None:
    """The name of the file's type, None where the file does not say or says what is not known."""
    number = checkpoint.metadata.get("general.file_type")
    return FILE_TYPES.get(number & ~_GUESSED) if type(number) is int and number >= 0 else None


def _typed(spec: ModelSpec, match: Match, checkpoint: Checkpoint) -> ModelSpec:
    """The spec with the file's types; norms and biases have the one that most of them have."""
    formats: dict[str, WeightFormat] = {}
    vectors: list[tuple[Slot, str]] = []
    for holding in match.holdings:
        if holding.slots[0].kind == "matrix":
            layout = holding_format(holding)
            formats.update((slot.source, layout) for slot in holding.slots)
        elif (dtype := plain_dtype(holding.main[0].dtype)) is not None:
            vectors += ((slot, dtype) for slot in holding.slots)
    common, dtypes = vector_types(vectors, default="fp32")
    label = _file_type(checkpoint)
    if label is None:
        label = max(checkpoint.bytes_by_dtype, key=checkpoint.bytes_by_dtype.__getitem__).lower()
    plain = _PLAIN.get(label)
    spec = replace(
        spec, dtype=plain or spec.dtype, vector_dtype=common, quantization=None if plain else label
    )
    return with_stored_types(spec, formats=formats, dtypes=dtypes)


def _findings(spec: ModelSpec, match: Match, checkpoint: Checkpoint) -> Iterator[Finding]:
    number = checkpoint.metadata.get("general.file_type")
    if number is not None and _file_type(checkpoint) is None:
        yield Finding(
            "file", f"general.file_type {number} is not known: the format is named after the tensors"
        )
    if match.missing:
        names = [next(stored_ways(slot, limit=0))[0] for slot in match.missing]
        yield Finding(
            "missing", f"{len(names):,} small tensors of the architecture are missing: {some(names)}",
            count=len(names), tensors=tuple(names[:3]),
        )  # fmt: skip
    yield from _layout_findings(match)
    held, counted = sum(tensor.bytes for tensor in match.used()), weights_bytes(spec)
    if held != counted:
        yield Finding(
            "layout",
            f"the tensors of the model take {format_bytes(held)}, its description {format_bytes(counted)}",
            bytes=held - counted,
        )


def _layout_findings(match: Match) -> Iterator[Finding]:
    """Where llama.cpp keeps matrices otherwise than the model's own checkpoint: split, joined, scaled."""
    ways: dict[tuple[str, str], list[Holding]] = {}
    for holding in match.holdings:
        if holding.slots[0].kind == "matrix" and (len(holding.main) > 1 or len(holding.slots) > 1):
            stored = _bare(tensor.name for tensor in holding.main)
            meant = _bare(slot.source for slot in holding.slots)
            ways.setdefault((stored, meant), []).append(holding)
    for (stored, meant), holdings in ways.items():
        yield finding(
            "layout",
            f"llama.cpp stores {meant} as {stored}",
            [tensor for holding in holdings for tensor in holding.main],
        )


def _bare(names: Iterable[str]) -> str:
    """The last words of some names, each once: ``attn_k_b and attn_v_b``."""
    words = dict.fromkeys(
        next(word for word in reversed(name.removesuffix(".weight").split(".")) if not word.isdecimal())
        for name in names
    )
    return quoted(" and ".join(words))[1:-1]
