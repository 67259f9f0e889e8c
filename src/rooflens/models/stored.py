"""What a model's own files hold, as their headers say: bytes by use and by type, and what is odd."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from rooflens.models.checkpoint.tensor import CheckpointFormat, TensorInfo
from rooflens.models.file_input import some

if TYPE_CHECKING:
    from rooflens.models.spec import ModelSpec

EVIDENCE = "exact: from the file's header"

FindingKind = Literal[
    "file",  # oddities of the files themselves
    "missing",
    "unknown",
    "duplicate",
    "dtype",
    "packing",
    "component",
    "correction",  # a field of the config that the shapes refute
    "loaded",  # an engine holds more or less than the file
    "layout",
]
#: Rows of tensors that are no part of the model's bytes.
NOT_COUNTED = ("mtp", "tables", "adapters", "unknown")
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Tensors that belong together; ``elements`` as stored (packed integers count as such)."""

    name: str
    tensors: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about the files, as a sentence; ``tensors`` are the first few concerned."""

    kind: FindingKind
    text: str
    count: int = 0
    bytes: int = 0
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredWeights:
    """The checkpoint of a model.

    tensor_bytes: all tensors of all files. model_bytes: those of the model, without prediction layers,
        tables that hold nothing trained, and tensors that it does not know.
    config_bytes: what the config alone makes of the weights, None where there is none (GGUF).
    described: the model as its config or metadata have it, from which another format starts.
    """

    format: CheckpointFormat
    files: int
    file_bytes: int
    tensor_bytes: int
    model_bytes: int
    config_bytes: int | None
    components: tuple[StoredRow, ...]
    types: tuple[StoredRow, ...]
    described: ModelSpec
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The ``checkpoint`` of ``rooflens inspect --json``."""
        return {
            "format": self.format,
            "evidence": EVIDENCE,
            "files": self.files,
            "file_bytes": self.file_bytes,
            "tensor_bytes": self.tensor_bytes,
            "model_bytes": self.model_bytes,
            "config_bytes": self.config_bytes,
            "components": [asdict(row) for row in self.components],
            "types": [asdict(row) for row in self.types],
            "findings": [{**asdict(finding), "tensors": list(finding.tensors)} for finding in self.findings],
        }


def stored_row(name: str, tensors: Iterable[TensorInfo]) -> StoredRow:
    """The sum of some tensors."""
    held = list(tensors)
    return StoredRow(
        name, len(held), sum(tensor.elements for tensor in held), sum(tensor.bytes for tensor in held)
    )


def finding(kind: FindingKind, text: str, tensors: Iterable[TensorInfo]) -> Finding:
    """A finding about some tensors, named after the sentence."""
    held = list(tensors)
    names = [tensor.name for tensor in held]
    return Finding(
        kind,
        f"{text}: {some(names)}",
        count=len(held),
        bytes=sum(tensor.bytes for tensor in held),
        tensors=tuple(names[:_EXAMPLES]),
    )
