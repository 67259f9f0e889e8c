"""Operators that torch compiles for this processor (AOTInductor), each one pass over its operands.

Eager torch has no product of one row that reads a weight at the speed of memory (oneDNN's reach about two
thirds of it on AVX-512 without AMX), and goes several times over a norm or a gated activation. The formulas
below are plain torch. Each is compiled once per processor, release of torch and type, kept as a package in
the cache folder, and tried against itself in eager before it is used. Calls skip what ``torch.compile``
would check every time, so shapes and layouts are checked here.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rooflens.runtime.compile_cache import alone, cache_folder, say
from rooflens.runtime.native.instructions import features

#: Types whose arithmetic is in fp32 anyway.
NARROW = (torch.bfloat16, torch.float16)
#: A rounding, relative to the value.
_ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
_PAGE_BYTES = 4096
#: However many threads run it, not as many as there were when it was compiled; and indices (the blocks of a
#: sequence, which are the engine's) are not checked one by one in the innermost loop.
_CONFIG = {"cpp.dynamic_threads": True, "assert_indirect_indexing": False}
_ROWS, _FEATURES, _OUT_FEATURES = 6, 160, 72


def streams_of(weight: Tensor) -> int:
    """How many rows of a weight are read side by side: two where a row ends before its page does, since the
    processor foresees one row at a time; 1.05 to 1.1 times as fast with rows of 1,792 bytes on Zen 4, 0.9
    with rows of 9,728."""
    return 2 if weight.shape[1] * weight.itemsize <= _PAGE_BYTES and weight.shape[0] % 2 == 0 else 1


def row_product(x: Tensor, weight: Tensor, bias: Tensor | None, streams: int) -> Tensor:
    """``x`` [1, in_features] times ``weight`` [out_features, in_features], summed in fp32."""
    rows = weight.shape[0] // streams
    sums = [(weight[n * rows : (n + 1) * rows].float() * x.float()).sum(-1) for n in range(streams)]
    total = torch.cat(sums) if streams > 1 else sums[0]
    return (total if bias is None else total + bias.float()).to(x.dtype)[None]


def _row_product_1(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return row_product(x, weight, bias, 1)


def _row_product_2(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return row_product(x, weight, bias, 2)


def _rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def _gated_silu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return (F.silu(gate.float()) * up.float()).to(x.dtype)


def _gated_gelu_tanh(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return (F.gelu(gate.float(), approximate="tanh") * up.float()).to(x.dtype)


Compiled = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Formula:
    """What is compiled.

    ``examples(dtype, rows)``: operands; a call may have other sizes in the dimensions ``free`` of an operand,
    by its index (None: in all of more than one). ``source``: what the code follows from, for the cache.
    ``roundings``: by how many of the type's roundings a result may be off.
    """

    name: str
    function: Compiled
    examples: Callable[[torch.dtype, int], tuple[Tensor, ...]]
    source: str
    free: Mapping[int, tuple[int, ...]] | None = None
    roundings: int = 2

    def free_of(self, index: int, operand: Tensor) -> tuple[int, ...]:
        """The free dimensions of one operand."""
        if self.free is not None:
            return self.free.get(index, ())
        return tuple(dim for dim, size in enumerate(operand.shape) if size > 1)


def _formula(function: Compiled, examples: Callable[[torch.dtype, int], tuple[Tensor, ...]]) -> Formula:
    return Formula(function.__name__.strip("_"), function, examples, inspect.getsource(function))


def _normal(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def _row_operands(dtype: torch.dtype, _: int) -> tuple[Tensor, ...]:
    weight = _normal(dtype, _OUT_FEATURES, _FEATURES)
    return _normal(dtype, 1, _FEATURES), weight, _normal(dtype, _OUT_FEATURES)


#: By the rows that are read side by side.
ROW_PRODUCTS = {
    streams: Formula(function.__name__.strip("_"), function, _row_operands, inspect.getsource(row_product))
    for streams, function in ((1, _row_product_1), (2, _row_product_2))
}
RMS_NORM = _formula(
    _rms_norm,
    lambda dtype, rows: (_normal(dtype, rows, _FEATURES), _normal(dtype, _FEATURES), torch.tensor(1e-6)),
)
GATED = {
    "silu": _formula(_gated_silu, lambda dtype, rows: (_normal(dtype, rows, 2 * _FEATURES),)),
    "gelu_tanh": _formula(_gated_gelu_tanh, lambda dtype, rows: (_normal(dtype, rows, 2 * _FEATURES),)),
}


#: What was compiled or tried in this process, by name and source: a formula may hold a model's weights.
_KNOWN: dict[tuple[str, str, torch.dtype], Compiled | str] = {}


def compiled(formula: Formula, dtype: torch.dtype) -> Compiled | str:
    """``formula`` as a function of contiguous operands in ``dtype``, or why there is none: no C++ compiler,
    or a release of torch that does it otherwise."""
    key = formula.name, formula.source, dtype
    if key not in _KNOWN:
        _KNOWN[key] = _tried(formula, dtype)
    return _KNOWN[key]


def _tried(formula: Formula, dtype: torch.dtype) -> Compiled | str:
    tolerance = formula.roundings * _ROUNDING[dtype]
    try:
        call = _load(_package(formula, dtype))
        for rows in (1, _ROWS):
            operands = formula.examples(dtype, rows)
            wanted, found = formula.function(*operands).float(), call(*operands).float()
            if not (wanted - found).abs().max() <= tolerance * wanted.abs().max():
                return f"{formula.name} compiled by torch computes something else"
    except Exception as error:  # torch's compiler raises types of its own, and those of everything below it
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f"torch could not compile {formula.name}: {reason[0]}"
    return call


def _load(package: Path) -> Compiled:
    # As torch._inductor.aoti_load_package does, without the second that it takes to import all of Inductor.
    run = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1).run

    def call(*operands: Tensor) -> Tensor:
        result: Tensor = run(list(operands))[0]
        return result

    return call


def _package(formula: Formula, dtype: torch.dtype) -> Path:
    """The package, from the cache or made now."""
    kind = str(dtype).removeprefix("torch.")
    path = cache_folder("torch") / f"{formula.name}-{kind}-{_key(formula)}.pt2"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.parent):
        if not path.is_file():
            started = time.monotonic()
            say(f"torch compiles {formula.name} in {kind}, once for this machine")
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
                os.replace(_compile(formula, dtype, Path(folder) / path.name), path)
            say(f"{formula.name} is compiled, {time.monotonic() - started:.1f} s", for_people=True)
    return path


def _key(formula: Formula) -> str:
    """Code for one processor must not run on another that shares the folder."""
    parts = [formula.source, repr(_CONFIG), torch.__version__, platform.machine(), *sorted(features())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(formula: Formula, dtype: torch.dtype, path: Path) -> Path:
    class Module(torch.nn.Module):
        def forward(self, *operands: Tensor) -> Tensor:
            return formula.function(*operands)

    operands = formula.examples(dtype, _ROWS)
    free: tuple[dict[int, Any], ...] = tuple(
        dict.fromkeys(formula.free_of(index, each), torch.export.Dim.AUTO)
        for index, each in enumerate(operands)
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = torch.export.export(Module(), operands, dynamic_shapes=(free,))
        made = torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=_CONFIG
        )
    return Path(made)
