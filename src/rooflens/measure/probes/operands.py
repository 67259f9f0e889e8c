"""Random operands: constant or small-integer data switches fewer transistors and runs faster than life."""

from __future__ import annotations

import torch
from torch import Tensor

from rooflens.units import MIB

SEED = 20231
_BLOCK_ELEMENTS = 4 * MIB + 4099
"""Drawn once and repeated; not a power of two, so that equal values fall on different lines and banks."""
INT8_LIMIT = 127


def generator(device: torch.device) -> torch.Generator:
    """A generator with the probe's fixed seed, on the device where it draws."""
    return torch.Generator(device=device).manual_seed(SEED)


def normal(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard normal values of any floating type."""
    count = 1
    for size in shape:
        count *= size
    block = torch.empty(min(count, _BLOCK_ELEMENTS), device=device).normal_(generator=generator(device))
    return repeated(block.to(dtype), count).view(shape)


def integers(*shape: int, device: torch.device) -> Tensor:
    """int8 values over the whole symmetric range, uniformly."""
    count = 1
    for size in shape:
        count *= size
    block = torch.randint(
        -INT8_LIMIT, INT8_LIMIT + 1, (min(count, _BLOCK_ELEMENTS),), dtype=torch.int8, device=device,
        generator=generator(device),
    )  # fmt: skip
    return repeated(block, count).view(shape)


def repeated(block: Tensor, count: int) -> Tensor:
    """``count`` elements made of copies of a block."""
    if block.numel() == count:
        return block
    out = torch.empty(count, dtype=block.dtype, device=block.device)
    fill(out, block)
    return out


def fill(out: Tensor, block: Tensor) -> None:
    """Write copies of ``block`` over the whole of a flat tensor."""
    # Types without a copy kernel of their own (fp8 on some devices) are moved as bytes.
    target, source = out.view(torch.uint8), block.view(torch.uint8)
    for start in range(0, target.numel(), source.numel()):
        part = target[start : start + source.numel()]
        part.copy_(source[: part.numel()])
