"""Quantisation configs of the tools that use one layout throughout: what they convert and what they leave.

Each reader takes the config as a ``Config`` and gives a ``Quantization``. Sources: the configs' classes in
Hugging Face transformers and the loaders of vLLM, mlx-lm and ExLlama.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.formats import layouts
from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.matching import ByModule, Patterns, pattern_list
from rooflens.models.formats.quantization import Quantization, blocks_except
from rooflens.models.formats.rewrite import BLOCK_ROLES, Matrix, Role

Reader = Callable[[Config], Quantization]
_NOT_CONVERTED = ("modules_to_not_convert", "ignored_layers")
# Kept in 16 bits in every fp8 checkpoint of DeepSeek's kind, whether the config says so or not.
_NEVER_FP8 = ("indexer.weights_proj", "compressor")


def patterns(cfg: Config, *names: str) -> Patterns:
    """The modules that the lists under ``names`` name, together."""
    found = [item for name in names for item in pattern_list(cfg.get(name), field=f"{cfg.where}: {name}")]
    return Patterns(found, field=f"{cfg.where}: {names[0]}")


def unknown(cfg: Config, field: str, allowed: str) -> UnsupportedError:
    """The error for a variant that is not covered."""
    return UnsupportedError(f"{cfg.where}: {field} is not covered", value=cfg.get(field), allowed=allowed)


def block_sides(cfg: Config, field: str) -> tuple[int, int] | None:
    """(rows, columns) of a block of weights, or None."""
    sides = cfg.items(field)
    if sides is None:
        return None
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise InputError(f"{cfg.where}: {field} is not two whole numbers", value=sides)
    return sides[0], sides[1]


def group_size(cfg: Config, field: str = "group_size", *, default: int) -> int:
    """Input features that share a scale; -1 stands for the whole row."""
    if cfg.get(field) == -1:
        return -1
    return cfg.size(field, default=default)


def fp8(cfg: Config) -> Quantization:
    """fp8 by block or by matrix; DeepSeek-V4 keeps its experts in four bits (``expert_dtype``)."""
    four_bit_experts = cfg.text("expert_dtype", default="fp8") == "fp4"
    sides = block_sides(cfg, "weight_block_size")
    if sides is None:
        layout = layouts.fp8_tensor(
            static_activations=cfg.text("activation_scheme", default="dynamic") == "static"
        )
    else:
        layout = layouts.fp8_block(*sides, scale_bits=layouts.BYTE if four_bit_experts else layouts.FP32)
    experts: WeightFormat | None = None
    if cfg.text("moe_quant_algo", default="").upper() == "NVFP4":
        experts = layouts.nvfp4()
    elif four_bit_experts:
        experts = replace(layouts.mxfp4(), compute_dtype="fp8")
    listed = [item for name in _NOT_CONVERTED for item in patterns(cfg, name).patterns]
    skipped = Patterns((*listed, *_NEVER_FP8), field=f"{cfg.where}: {_NOT_CONVERTED[0]}")
    choose = blocks_except(layout, skipped)

    def with_experts(matrix: Matrix) -> WeightFormat | None:
        chosen = choose(matrix)
        return experts if experts is not None and chosen and matrix.role is Role.EXPERT else chosen

    return Quantization("fp8", with_experts, per_layer=bool(listed))


def fbgemm_fp8(cfg: Config) -> Quantization:
    """fp8 by row with fp32 scales (Llama 3.1 405B)."""
    skipped = patterns(cfg, *_NOT_CONVERTED)
    return Quantization("fbgemm_fp8", blocks_except(layouts.fp8_channel(), skipped))


def awq(cfg: Config) -> Quantization:
    """AutoAWQ's gemm layout and its relatives of equal size."""
    layout = layouts.awq(
        cfg.size("bits", "w_bit", default=4),
        group_size(cfg, "q_group_size" if cfg.get("q_group_size") else "group_size", default=128),
        zero_point=cfg.flag("zero_point", default=True),
    )
    return Quantization("awq", blocks_except(layout, patterns(cfg, *_NOT_CONVERTED)))


def gptq(cfg: Config) -> Quantization:
    """GPTQ; ``dynamic`` overrides by regular expression, with ``-:`` for what is left alone."""
    bits, group = cfg.size("bits"), group_size(cfg, default=128)
    marlin = cfg.text("checkpoint_format", default="gptq") == "marlin"

    def layout(own_bits: int, own_group: int) -> WeightFormat:
        return layouts.packed_int(own_bits, own_group) if marlin else layouts.gptq(own_bits, own_group)

    rules = [
        (expression, layout(own.size("bits", default=bits), group_size(own, default=group)) if own else None)
        for expression, own in _dynamic(cfg)
    ]
    head = cfg.flag("lm_head", default=False)
    listed = cfg.items("modules_in_block_to_quantize")
    only = Patterns(_flat(listed), field=f"{cfg.where}: modules_in_block_to_quantize") if listed else None
    skipped = patterns(cfg, *_NOT_CONVERTED)

    def choose(matrix: Matrix) -> WeightFormat | None:
        if matrix.role not in BLOCK_ROLES and not (head and matrix.role is Role.HEAD):
            return None
        if skipped.match(matrix) or (only is not None and not only.match(matrix)):
            return None
        module = matrix.expert_modules[0]
        for expression, made in rules:
            if expression.match(module):
                return made
        return layout(bits, group)

    return Quantization("gptq", choose, per_layer=bool(rules or skipped))


def _dynamic(cfg: Config) -> list[tuple[re.Pattern[str], Config | None]]:
    """GPTQModel's rules in order: an expression and its settings, None for what stays as it is."""
    section = cfg.section("dynamic")
    rules: list[tuple[re.Pattern[str], Config | None]] = []
    for pattern in section.fields if section is not None else ():
        try:
            expression = re.compile(pattern.removeprefix("-:").removeprefix("+:"))
        except re.error as error:
            raise InputError(f"{cfg.where}: dynamic holds an invalid expression: {error}") from None
        own = None
        if section is not None and not pattern.startswith("-:"):
            own = section.section(pattern)
        rules.append((expression, own))
    return rules


def _flat(value: list[object]) -> list[str]:
    return [name for item in value for name in (_flat(item) if isinstance(item, list) else [str(item)])]


def bitsandbytes(cfg: Config) -> Quantization:
    """4 bits (nf4, fp4) or LLM.int8(); an own list of skipped modules replaces the default one (the head)."""
    if cfg.flag("load_in_4bit", "_load_in_4bit", default=False):
        kind = cfg.text("bnb_4bit_quant_type", default="fp4")
        if kind not in ("nf4", "fp4"):
            raise unknown(cfg, "bnb_4bit_quant_type", "nf4, fp4")
        layout = layouts.bnb_4bit(kind, double_quant=cfg.flag("bnb_4bit_use_double_quant", default=False))
    elif cfg.flag("load_in_8bit", "_load_in_8bit", default=False):
        layout = layouts.bnb_int8()
    else:
        raise InputError(f"{cfg.where} sets neither load_in_4bit nor load_in_8bit")
    skipped = patterns(cfg, "llm_int8_skip_modules")
    roles = BLOCK_ROLES | {Role.OUTSIDE} | ({Role.HEAD} if skipped else frozenset())
    return Quantization("bitsandbytes", blocks_except(layout, skipped, roles=roles))


def mxfp4(cfg: Config) -> Quantization:
    """gpt-oss: the routed experts in MXFP4, everything else in 16 bits."""
    choose = blocks_except(layouts.mxfp4(), patterns(cfg, *_NOT_CONVERTED), roles=frozenset({Role.EXPERT}))
    return Quantization("mxfp4", choose)


def _exl(version: int) -> Reader:
    def read(cfg: Config) -> Quantization:
        bits = Fraction(str(cfg.number("bits", default=0.0)))
        head_bits = Fraction(str(cfg.number("head_bits", default=6.0)))
        if not (0 < bits <= 16 and 0 < head_bits <= 16):
            raise InputError(f"{cfg.where}: bits and head_bits must lie between 0 and 16", value=float(bits))
        blocks = layouts.exl(bits, version=version)
        head = layouts.exl(head_bits, version=version)

        def choose(matrix: Matrix) -> WeightFormat | None:
            return head if matrix.role is Role.HEAD else blocks if matrix.role in BLOCK_ROLES else None

        return Quantization(f"exl{version}", choose, per_layer=False, head_copy=head, evidence="assumed")

    return read


def mlx(cfg: Config) -> Quantization:
    """MLX: every linear and table, with overrides by module; false leaves a module alone."""
    default = _mlx_layout(cfg)
    overrides: dict[str, WeightFormat | bool] = {}
    for name, value in cfg.fields.items():
        if isinstance(value, Mapping):
            overrides[name] = _mlx_layout(Config({**cfg.fields, **value}, where=f"{cfg.where}: {name}"))
        elif value is False and name != "quantize_input":
            overrides[name] = False
    named = ByModule(overrides, field=cfg.where)

    def choose(matrix: Matrix) -> WeightFormat | None:
        own = named.get(matrix)
        layout = default if own is None or own is True else own
        # mlx-lm does not convert a row that is not a whole number of groups.
        if isinstance(layout, bool) or matrix.in_features % layout.group_size:
            return None
        return layout

    return Quantization("mlx", choose, per_layer=bool(overrides))


def _mlx_layout(cfg: Config) -> WeightFormat:
    mode = cfg.text("mode", default="affine")
    if mode == "affine":
        return layouts.mlx_affine(cfg.size("bits"), cfg.size("group_size", default=64))
    if mode in ("mxfp4", "mxfp8", "nvfp4"):
        made = {"mxfp4": layouts.mxfp4(), "mxfp8": layouts.mxfp8(), "nvfp4": layouts.nvfp4()}[mode]
        return replace(made, compute_dtype=None, tensor_bits=0)
    raise unknown(cfg, "mode", "affine, mxfp4, mxfp8, nvfp4")


METHODS: dict[str, Reader] = {
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "awq": awq,
    "gptq": gptq,
    "bitsandbytes": bitsandbytes,
    "mxfp4": mxfp4,
    "exl2": _exl(2),
    "exl3": _exl(3),
    "mlx": mlx,
}
