"""GGUF checkpoints: one file, or the numbered parts of a split one taken together.

A split model is ``NAME-00001-of-0000N.gguf`` and on: names count from 1, ``split.no`` inside from 0.
Only the first part has the model's metadata; each part lists its own tensors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rooflens.errors import InputError
from rooflens.models.checkpoint.byte_source import ByteSource, FileSource, map_sources
from rooflens.models.checkpoint.extents import check_extents
from rooflens.models.checkpoint.gguf_header import GGUFHeader, read_header
from rooflens.models.checkpoint.numbered import is_numbered, numbered_set
from rooflens.models.checkpoint.tensor import Checkpoint, CheckpointFile, TensorInfo
from rooflens.models.file_input import quoted

_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


def read_gguf(path: str | os.PathLike[str]) -> Checkpoint:
    """Read the headers of a GGUF model from its path; of a split one from the path of any part.

    Raises NotFoundError naming the missing parts; InputError and UnsupportedError as `read_header` does.
    """
    path = Path(path)
    whole = FileSource(path)
    if not is_numbered(path.name):
        return read_gguf_parts([whole])
    names = numbered_set(path.name, present=os.listdir(path.parent))
    return read_gguf_parts([FileSource(path.parent / name) for name in names])


def read_gguf_parts(sources: Sequence[ByteSource], *, workers: int = 1) -> Checkpoint:
    """Read a GGUF model from the sources of all its parts, in order; one source if it is not split.

    ``workers``: how many parts to read at a time. Raises InputError if the parts do not belong together, or
    hold a tensor twice.
    """
    headers = map_sources(read_header, sources, workers=workers)
    problems: list[str] = []
    files: list[CheckpointFile] = []
    by_name: dict[str, TensorInfo] = {}
    for source, header in zip(sources, headers, strict=True):
        files.append(CheckpointFile(source.name, source.size, header.data_offset))
        for tensor in header.tensors:
            if tensor.name in by_name:
                raise _duplicate(tensor, by_name[tensor.name])
            by_name[tensor.name] = tensor
        problems += _check_file(source, header)
    problems += _check_split(sources, headers, tensor_count=len(by_name))
    first = headers[0]
    metadata: dict[str, Any] = {
        "GGUF.version": first.version,
        "GGUF.byte_order": first.byte_order,
        **first.metadata,
    }
    if not by_name:
        problems.append(f"{files[0].name} holds no tensors: it may be a vocabulary only")
    return Checkpoint("gguf", tuple(files), tuple(by_name.values()), metadata, tuple(problems))


def _check_file(source: ByteSource, header: GGUFHeader) -> list[str]:
    try:
        problems = check_extents(
            header.tensors,
            file=source.name,
            file_bytes=source.size,
            data_offset=header.data_offset,
            padding_bytes=header.alignment - 1,
        )
    except InputError as error:
        if any(tensor.dtype == "Q2_0" for tensor in header.tensors):
            remedy = "or it is from the fork of llama.cpp that writes Q2_0 in blocks of 128 weights"
            raise InputError(error.what, next=remedy) from None
        raise
    misaligned = sum(tensor.offset % header.alignment != 0 for tensor in header.tensors)
    if misaligned:
        problems.append(
            f"{source.name}: {misaligned:,} tensors do not start at a multiple of {header.alignment} bytes, "
            "which llama.cpp requires"
        )
    return problems


def _check_split(
    sources: Sequence[ByteSource], headers: Sequence[GGUFHeader], *, tensor_count: int
) -> list[str]:
    """Compare what the parts say of themselves with what was given."""
    for number, (source, header) in enumerate(zip(sources, headers, strict=True)):
        count = header.metadata.get(_COUNT, 1)
        if len(sources) == 1 and count not in (0, 1):
            own = header.metadata.get(_NUMBER, 0)
            shown = own + 1 if isinstance(own, int) else own
            raise InputError(
                f"{source.name} is part {shown} of {count} of a split model, but its name does not say so",
                next="name the parts NAME-00001-of-0000N.gguf, as they were published",
            )
        if len(sources) > 1 and (count != len(sources) or header.metadata.get(_NUMBER) != number):
            raise InputError(
                f"{source.name} should be part {number + 1} of {len(sources)}, but its header says "
                f"{_NUMBER} {header.metadata.get(_NUMBER)} (from 0) and {_COUNT} {count}",
                next="download the parts again, all of the same model",
            )
    declared = headers[0].metadata.get(_TENSORS)
    if declared is not None and declared != tensor_count and len(sources) > 1:
        raise InputError(
            f"{sources[0].name} announces {declared} tensors in all parts, but they hold {tensor_count:,}",
            next="download the parts again, all of the same model",
        )
    name = sources[0].name
    if len(sources) == 1 and is_numbered(name):
        return [f"{name} is named as a part of a split model, but its header does not say so"]
    return []


def _duplicate(tensor: TensorInfo, other: TensorInfo) -> InputError:
    where = f"{other.file} and {tensor.file}" if other.file != tensor.file else tensor.file
    return InputError(f"tensor {quoted(tensor.name)} is stored twice, in {where}", next="download it again")
