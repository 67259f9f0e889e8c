"""Do the tensors of a file lie inside it, apart from one another, and cover it?"""

from __future__ import annotations

from collections.abc import Sequence

from rooflens.errors import InputError
from rooflens.models.checkpoint.tensor import TensorInfo
from rooflens.models.file_input import quoted


def check_extents(
    tensors: Sequence[TensorInfo], *, file: str, file_bytes: int, data_offset: int, padding_bytes: int
) -> list[str]:
    """Check one file's tensors against its size; return findings that leave the listing right, as sentences.

    ``padding_bytes``: how many bytes may lie unused after a tensor. Raises InputError if a tensor ends
    after the file (telling both sizes) or overlaps another.
    """
    problems: list[str] = []
    end, before, unused_bytes, gaps = data_offset, None, 0, 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.bytes)):
        if tensor.offset < end and tensor.bytes and before is not None:
            raise InputError(
                f"{file} is damaged: tensors {quoted(before.name)} and {quoted(tensor.name)} overlap"
            )
        if tensor.offset - end > padding_bytes:
            unused_bytes += tensor.offset - end
            gaps += 1
        if tensor.offset + tensor.bytes >= end:
            end, before = tensor.offset + tensor.bytes, tensor
    if end > file_bytes and tensors:
        raise InputError(
            f"{file} is cut off: its tensors end at byte {end:,}, but the file has {file_bytes:,}",
            next="download or copy it again",
        )
    if gaps:
        where = f"{gaps:,} place{'s' if gaps > 1 else ''}"
        problems.append(f"{file}: {unused_bytes:,} bytes in {where} between tensors belong to none")
    if tensors and file_bytes - end > padding_bytes:
        problems.append(f"{file}: the last {file_bytes - end:,} bytes belong to no tensor")
    return problems
