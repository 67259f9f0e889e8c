"""GGML's tensor types: how many elements a block holds and how many bytes it takes.

Sources: ``ggml/include/ggml.h`` (ids) and ``ggml/src/ggml-common.h`` (blocks) of llama.cpp; tests compare
the table with the constants of the ``gguf`` package.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.file_input import quoted
from rooflens.units import BITS_PER_BYTE


@dataclass(frozen=True, slots=True)
class GGMLType:
    """A storage type: ``block_elements`` consecutive elements of a row take ``block_bytes`` bytes."""

    id: int
    name: str
    block_elements: int
    block_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits of storage per element, scales included: 4.5 for Q4_K (144 B for 256 weights)."""
        return BITS_PER_BYTE * self.block_bytes / self.block_elements


_TABLE = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)

GGML_TYPES: dict[int, GGMLType] = {row[0]: GGMLType(*row) for row in _TABLE}
GGML_TYPES_BY_NAME: dict[str, GGMLType] = {entry.name: entry for entry in GGML_TYPES.values()}

#: Ids that once had a meaning. The repacked layouts were replaced by repacking at load time.
_REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
_FIRST_FORK_ID = 96  # llama.cpp counts on from 43; its fork ik_llama.cpp numbers its types from here


def ggml_type(type_id: int, *, tensor: str) -> GGMLType:
    """The type with this id. Raises UnsupportedError, naming id and tensor, where the size is not known."""
    found = GGML_TYPES.get(type_id)
    if found is not None:
        return found
    what = f"tensor {quoted(tensor)} has the unknown GGML type {type_id}"
    remedy = "update Rooflens if the type is new, or use another quantisation of the model"
    if type_id in _REMOVED:
        what = f"tensor {quoted(tensor)} has GGML type {type_id}, {_REMOVED[type_id]}, since removed"
        remedy = "use a current quantisation of the model"
    elif type_id >= _FIRST_FORK_ID:
        remedy = "types of the ik_llama.cpp fork are not covered: use a quantisation made by llama.cpp"
    raise UnsupportedError(what, allowed=f"ids {_ranges()}", next=remedy)


def tensor_bytes(type_: GGMLType, row_major_shape: tuple[int, ...], *, tensor: str) -> int:
    """Bytes of a tensor: rows of whole blocks. Raises InputError if a row is not a whole number of blocks."""
    elements = 1
    for size in row_major_shape:
        elements *= size
    row = row_major_shape[-1] if row_major_shape else 1
    if row % type_.block_elements:
        raise InputError(
            f"tensor {quoted(tensor)} has rows of {row} elements, not a whole number of {type_.name} blocks",
            allowed=f"a multiple of {type_.block_elements}",
        )
    return elements // type_.block_elements * type_.block_bytes


def _ranges() -> str:
    """The known ids in short: ``0-3, 6-30, 34-35``."""
    runs: list[list[int]] = []
    for type_id in sorted(GGML_TYPES):
        if runs and type_id == runs[-1][-1] + 1:
            runs[-1].append(type_id)
        else:
            runs.append([type_id])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
