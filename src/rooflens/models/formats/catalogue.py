"""Formats by name: what ``--weights NAME`` applies to a model.

Names carry their parameters (``awq-g64``, ``gptq-int8-g32``, ``exl3-4.25bpw``, ``mlx-6bit-g32``); parts
left out take the tool's defaults. GGUF file types are named as llama.cpp names them (``Q4_K_M``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from fractions import Fraction
from functools import cache

from rooflens.dtypes import DTYPE_ALIASES
from rooflens.errors import UnsupportedError
from rooflens.models.formats import layouts
from rooflens.models.formats.base import WeightFormat, plain_format
from rooflens.models.formats.gguf_recipes import RECIPE_ALIASES, RECIPES
from rooflens.models.formats.rewrite import BLOCK_ROLES, Role
from rooflens.models.formats.scheme import FormatScheme, in_blocks

_LLM_COMPRESSOR = "llm-compressor, compressed-tensors checkpoints"
_MODELOPT = "NVIDIA ModelOpt, its default configs"
_VLLM_ONLINE = "vLLM --quantization fp8"
_PLAIN = ("fp32", "bf16", "fp16")
_ALIASES = {
    **{alias: name for alias, name in DTYPE_ALIASES.items() if name in _PLAIN},
    **RECIPE_ALIASES,
    "int8-channel": "w8a16", "int8-w8a8": "w8a8", "fp8-tensor": "fp8", "fp8-dynamic": "fp8-channel",
    "bnb-4bit": "nf4", "bnb-nf4": "nf4", "bitsandbytes": "nf4", "bnb-8bit": "bnb-int8",
    "w4a16": "w4a16-g128", "mxfp4-moe": "mxfp4_moe",
}  # fmt: skip


def _plain(dtype: str) -> FormatScheme:
    return FormatScheme(
        dtype, f"every weight in {dtype}, cache and activations too", "the element type", dtype=dtype
    )


def _ideal(dtype: str) -> FormatScheme:
    """Every parameter at the type's bits: no scales, nothing left out, arithmetic as the activations."""
    return FormatScheme(
        dtype,
        f"idealised: every parameter at {dtype}, no scales or zero points; real formats carry them",
        "arithmetic",
        formats=dict.fromkeys(Role, plain_format(dtype)),
        vector_dtype=dtype,
        ideal=True,
    )


def _blocks(name: str, layout: WeightFormat, about: str, source: str) -> FormatScheme:
    return FormatScheme(name, about, source, formats=in_blocks(layout))


def _group_format(name: str, layout: WeightFormat, about: str, source: str) -> FormatScheme:
    return FormatScheme(name, about, source, formats=in_blocks(layout), in_multiple=layout.group_size)


def _awq(bits: int, group: int) -> FormatScheme:
    return FormatScheme(
        f"awq-g{group}" if bits == 4 else f"awq-int{bits}-g{group}",
        f"int{bits} in groups of {group}, fp16 scales, packed zero points",
        "AutoAWQ, gemm layout",
        formats=in_blocks(layouts.awq(bits, group)),
        in_multiple=group,
        out_multiple=32 // bits,
    )


def _gptq(bits: int, group: int) -> FormatScheme:
    return FormatScheme(
        f"gptq-int{bits}" + (f"-g{group}" if group > 0 else ""),
        f"int{bits} " + (f"in groups of {group}" if group > 0 else "with a scale a row")
        + ", fp16 scales, packed zero points, g_idx",
        "AutoGPTQ and GPTQModel checkpoints",
        formats=in_blocks(layouts.gptq(bits, group)),
        in_multiple=32,
        out_multiple=32,
    )  # fmt: skip


def _wna16(bits: int, group: int) -> FormatScheme:
    return FormatScheme(
        f"w{bits}a16-g{group}",
        f"int{bits} in groups of {group}, symmetric, 16-bit scales",
        f"{_LLM_COMPRESSOR} (W{bits}A16)",
        formats=in_blocks(layouts.packed_int(bits, group)),
        in_multiple=group,
    )


def _mlx(bits: int, group: int) -> FormatScheme:
    every = layouts.mlx_affine(bits, group)
    return FormatScheme(
        f"mlx-{bits}bit-g{group}",
        f"{bits} bits in groups of {group}, 16-bit scales and biases; head and token table too",
        "mlx-lm convert",
        formats={**dict.fromkeys(Role, every), Role.ROUTER: layouts.mlx_affine(8, group)},
        in_multiple=group,
    )


def _exl(version: int, bits: Fraction, head_bits: int) -> FormatScheme:
    return FormatScheme(
        f"exl{version}-{float(bits):g}bpw-h{head_bits}",
        f"{float(bits):g} bits a weight in the mean over the layers, {head_bits} in the head",
        f"ExLlamaV{version} convert",
        formats={
            **in_blocks(layouts.exl(bits, version=version)),
            Role.HEAD: layouts.exl(Fraction(head_bits), version=version),
        },
        splits_tied_head=True,
        evidence="assumed",  # the mean is the target; what each layer gets is measured
    )


def _hqq(bits: int, group: int) -> FormatScheme:
    return FormatScheme(
        f"hqq-int{bits}-g{group}",
        f"int{bits} in groups of {group}, 16-bit scales and zero points",
        "HQQ",
        formats=in_blocks(layouts.hqq(bits, group)),
    )


def _torchao(bits: int, group: int) -> FormatScheme:
    """torchao's quantize_ converts every linear, the head too; so does gpt-fast."""
    layout = layouts.int8_channel() if bits == 8 else layouts.scale_and_zero("torchao", bits, group)
    return FormatScheme(
        "torchao-int8" if bits == 8 else f"torchao-int{bits}-g{group}",
        "int8 weights, a scale a row" if bits == 8 else f"int{bits} in groups of {group}, scales and zeros",
        "torchao quantize_, gpt-fast",
        formats=dict.fromkeys((*BLOCK_ROLES, Role.HEAD, Role.OUTSIDE), layout),
    )


def _gguf(name: str) -> FormatScheme:
    return FormatScheme(
        name,
        f"GGUF file type {name.removeprefix('gguf-').upper()}",
        "llama.cpp, llama-quantize",
        vector_dtype="fp32",
        recipe=RECIPES[name],
        evidence="exact" if RECIPES[name].plain else "assumed",  # an importance matrix can change it
    )


@cache
def _named() -> dict[str, FormatScheme]:
    """The schemes without parameters."""
    schemes = (
        *(_plain(dtype) for dtype in _PLAIN),
        *(_ideal(dtype) for dtype in ("int8", "int4")),
        _blocks("fp8", layouts.fp8_tensor(), "fp8 weights and activations, a scale a matrix", _VLLM_ONLINE),
        _blocks(
            "fp8-channel",
            layouts.fp8_channel(scale_bits=layouts.HALF),
            "fp8 weights and activations, a scale a row",
            f"{_LLM_COMPRESSOR} (FP8_DYNAMIC)",
        ),
        _blocks(
            "fp8-block",
            layouts.fp8_block(),
            "fp8 weights and activations, an fp32 scale per 128x128 block",
            "DeepSeek-V3's own format",
        ),
        _blocks(
            "w8a8",
            layouts.int8_channel(activations=True),
            "int8 weights and activations, a scale a row",
            f"{_LLM_COMPRESSOR} (W8A8)",
        ),
        _blocks("w8a16", layouts.int8_channel(), "int8 weights, a scale a row", f"{_LLM_COMPRESSOR} (W8A16)"),
        _blocks("nf4", layouts.bnb_4bit(), "NF4, double quantisation", "bitsandbytes, QLoRA"),
        _blocks("nf4-single", layouts.bnb_4bit(double_quant=False), "NF4, fp32 scales", "bitsandbytes"),
        _blocks("bnb-int8", layouts.bnb_int8(), "LLM.int8(), a scale a row", "bitsandbytes"),
        _group_format("nvfp4", layouts.nvfp4(), "NVFP4 weights and activations", _MODELOPT),
        _group_format("nvfp4-w4a16", layouts.nvfp4(activations=False), "NVFP4 weights", _MODELOPT),
        _group_format("mxfp4", layouts.mxfp4(), "MXFP4 weights", "OCP Microscaling Formats v1.0"),
        _group_format("mxfp8", layouts.mxfp8(), "MXFP8 weights and activations", "OCP Microscaling v1.0"),
    )
    return {scheme.name: scheme for scheme in schemes}


def _number(text: str | None, default: int) -> int:
    return int(text) if text else default


# Pattern, builder from its groups, and an example for error messages and help.
_PARAMETRIC: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], FormatScheme], str], ...] = tuple(
    (re.compile(pattern), build, example)
    for pattern, build, example in (
        (
            r"awq(?:-int(4|8))?(?:-g(16|32|64|128))?",
            lambda m: _awq(_number(m[1], 4), _number(m[2], 128)),
            "awq-g64",
        ),
        (
            r"gptq(?:-int([2348]))?(?:-g(32|64|128|256|512|1024|-1))?",
            lambda m: _gptq(_number(m[1], 4), _number(m[2], 128)),
            "gptq-int4-g128",
        ),
        (
            r"(?:w([48])a16|int([48]))-g(32|64|128)",
            lambda m: _wna16(int(m[1] or m[2]), int(m[3])),
            "w4a16-g128",
        ),
        (
            r"mlx-([234568])bit(?:-g(32|64|128))?",
            lambda m: _mlx(int(m[1]), _number(m[2], 64)),
            "mlx-4bit",
        ),
        (
            r"exl([23])-(\d+(?:\.\d+)?)(?:bpw)?(?:-h([2-8]))?",
            lambda m: _exl(int(m[1]), Fraction(m[2]), _number(m[3], 6)),
            "exl3-4.0bpw",
        ),
        (
            r"torchao-int(?:8|4-g(32|64|128|256))",
            lambda m: _torchao(4, int(m[1])) if m[1] else _torchao(8, 0),
            "torchao-int4-g32",
        ),
        (
            r"hqq(?:-int([12348]))?(?:-g(16|32|64|128|256))?",
            lambda m: _hqq(_number(m[1], 4), _number(m[2], 64)),
            "hqq-int4-g64",
        ),
    )
)  # fmt: skip


def format_names() -> tuple[str, ...]:
    """Every name, parametric ones by an example."""
    return (*_named(), *(example for _, _, example in _PARAMETRIC), *RECIPES)


@cache
def find_format(name: str) -> FormatScheme:
    """The scheme of this name or alias. Raises UnsupportedError naming it and the nearest known ones."""
    wanted = name.strip().lower().replace(" ", "")
    wanted = _ALIASES.get(wanted, wanted)
    if wanted in _named():
        return _named()[wanted]
    if wanted in RECIPES:
        return _gguf(wanted)
    for pattern, build, _ in _PARAMETRIC:
        match = pattern.fullmatch(wanted)
        if match is not None:
            return build(match)
    near = difflib.get_close_matches(wanted, (*format_names(), *_ALIASES), n=3)
    raise UnsupportedError(
        "weights is not a known format",
        value=name,
        allowed=", ".join(format_names()),
        next=f"did you mean {' or '.join(near)}?" if near else None,
    )
