"""Quantisation configs met less often: EETQ, quanto, torchao, HQQ, AQLM, BitNet, AutoRound, Quark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rooflens.errors import InputError
from rooflens.models.families.config import Config
from rooflens.models.formats import layouts
from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.matching import ByModule, Patterns
from rooflens.models.formats.methods import Reader, group_size, patterns, unknown
from rooflens.models.formats.quantization import Quantization, blocks_except
from rooflens.models.formats.rewrite import BLOCK_ROLES, Matrix

_UNQUANTISED_BITS = 16
_QUANTO_GROUP, _TORCHAO_GROUP, _HQQ_GROUP = 128, 128, 64


def eetq(cfg: Config) -> Quantization:
    """EETQ: int8 weights with a 16-bit scale a row."""
    layout = layouts.int8_channel()
    return Quantization("eetq", blocks_except(layout, patterns(cfg, "modules_to_not_convert")))


def quanto(cfg: Config) -> Quantization:
    """quanto: 8 bits with a scale a row; 4 and 2 bits with a scale and a shift per group of 128."""
    kind = cfg.text("weights", default="int8")
    if kind == "int8":
        layout = layouts.int8_channel()
    elif kind == "float8":
        layout = layouts.fp8_channel(scale_bits=layouts.HALF, activations=False)
    elif kind in ("int4", "int2"):
        bits = int(kind.removeprefix("int"))
        layout = layouts.scale_and_zero("quanto", bits, _QUANTO_GROUP)
    else:
        raise unknown(cfg, "weights", "int8, int4, int2, float8")
    return Quantization("quanto", blocks_except(layout, patterns(cfg, "modules_to_not_convert")))


def torchao(cfg: Config) -> Quantization:
    """torchao's weight-only and dynamic types, by name or as a config object."""
    kind, settings = cfg.get("quant_type"), cfg.section("quant_type_kwargs")
    if isinstance(kind, Mapping):
        default = kind.get("default", kind)
        kind = default.get("_type") if isinstance(default, Mapping) else None
        data = default.get("_data") if isinstance(default, Mapping) else None
        settings = Config(data, where=f"{cfg.where}: quant_type") if isinstance(data, Mapping) else None
    name = str(kind).removesuffix("Config").replace("_", "").lower()
    row = settings is not None and "perrow" in str(settings.get("granularity")).lower()
    eight_bits = {
        "int8weightonly": layouts.int8_channel(),
        "int8dynamicactivationint8weight": layouts.int8_channel(activations=True),
        "float8weightonly": layouts.fp8_channel(activations=False),
        "float8dynamicactivationfloat8weight": layouts.fp8_channel() if row else layouts.fp8_tensor(),
    }
    if name == "int4weightonly":
        group = _TORCHAO_GROUP if settings is None else settings.size("group_size", default=_TORCHAO_GROUP)
        layout = layouts.scale_and_zero("torchao", 4, group)
    elif name in eight_bits:
        layout = eight_bits[name]
    else:
        raise unknown(cfg, "quant_type", "int4_weight_only and " + ", ".join(eight_bits))
    return Quantization("torchao", blocks_except(layout, patterns(cfg, "modules_to_not_convert")))


def hqq(cfg: Config) -> Quantization:
    """HQQ with one setting for all linears, or one per kind of linear."""
    settings = cfg.section("quant_config")
    if settings is None:
        raise InputError(f"{cfg.where} has no quant_config")

    def layout(section: Config | None) -> WeightFormat:
        inner = section.section("weight_quant_params") if section is not None else None
        if inner is None:
            raise InputError(f"{cfg.where}: quant_config has no weight_quant_params")
        bits = inner.size("nbits")
        if bits not in (1, 2, 3, 4, 8):
            raise unknown(inner, "nbits", "1, 2, 3, 4, 8")
        return layouts.hqq(bits, inner.size("group_size", default=_HQQ_GROUP))

    skipped = patterns(cfg, "skip_modules")
    if settings.get("weight_quant_params") is not None:
        return Quantization("hqq", blocks_except(layout(settings), skipped))
    kinds = [
        (Patterns([name], field=settings.where), layout(settings.section(name))) for name in settings.fields
    ]

    def choose(matrix: Matrix) -> WeightFormat | None:
        if matrix.role not in BLOCK_ROLES or skipped.match(matrix):
            return None
        return next((made for named, made in kinds if named.match(matrix)), None)

    return Quantization("hqq", choose)


def aqlm(cfg: Config) -> Quantization:
    """AQLM with codes for one row at a time, as its published checkpoints have."""
    if cfg.size("out_group_size", default=1) != 1:
        raise unknown(cfg, "out_group_size", "1")
    layout = layouts.aqlm(
        codebooks=cfg.size("num_codebooks", default=1),
        code_bits=cfg.size("nbits_per_codebook", default=16),
        in_group=cfg.size("in_group_size", default=8),
    )
    return Quantization("aqlm", blocks_except(layout, patterns(cfg, "linear_weights_not_to_quantize")))


def bitnet(cfg: Config) -> Quantization:
    """BitNet packed offline; "online" checkpoints hold 16-bit weights that are packed at load."""
    if cfg.text("quantization_mode", default="offline") != "offline":
        raise unknown(cfg, "quantization_mode", "offline")
    return Quantization("bitnet", blocks_except(layouts.bitnet(), patterns(cfg, "modules_to_not_convert")))


def auto_round(cfg: Config) -> Quantization:
    """AutoRound: integers packed as in GPTQ without g_idx, or as in AWQ; overrides in ``extra_config``."""
    if cfg.text("data_type", default="int") != "int":
        raise unknown(cfg, "data_type", "int")

    def layout(section: Config) -> WeightFormat | None:
        bits = section.size("bits", default=cfg.size("bits"))
        own_group = group_size(section, default=group_size(cfg, default=128))
        return None if bits >= _UNQUANTISED_BITS else layouts.packed_int(bits, own_group, symmetric=False)

    extra = cfg.section("extra_config")
    entries = {name: extra.section(name) for name in extra.fields} if extra is not None else {}
    named = ByModule(
        {name: (layout(section),) for name, section in entries.items() if section is not None},
        field=f"{cfg.where}: extra_config",
    )
    default = layout(cfg)

    def choose(matrix: Matrix) -> WeightFormat | None:
        own = named.get(matrix)
        if own is not None:
            return own[0]
        return default if matrix.role in BLOCK_ROLES else None

    return Quantization("auto-round", choose)


def quark(cfg: Config) -> Quantization:
    """AMD Quark: one global setting, others by layer pattern, a list of what is left alone."""
    overall = cfg.section("global_quant_config")
    if overall is None:
        raise InputError(f"{cfg.where} has no global_quant_config")
    default = _quark_layout(overall)
    others = cfg.section("layer_quant_config")
    rules = [
        (Patterns([name], field=others.where), _quark_layout(section))
        for name in (others.fields if others is not None else ())
        if others is not None and (section := others.section(name)) is not None
    ]
    skipped = patterns(cfg, "exclude")

    def choose(matrix: Matrix) -> WeightFormat | None:
        if skipped.match(matrix):
            return None
        for named, made in rules:
            if named.match(matrix):
                return made
        return default if matrix.role in BLOCK_ROLES else None

    return Quantization("quark", choose)


def _quark_layout(cfg: Config) -> WeightFormat:
    weight = cfg.section("weight")
    if weight is None:
        raise unknown(cfg, "weight", "an object with dtype and qscheme")
    activations = cfg.get("input_tensors") is not None
    kind, scheme = weight.text("dtype", default=""), weight.text("qscheme", default="")
    if kind.startswith("fp8") and scheme == "per_tensor":
        return layouts.fp8_tensor(static_activations=activations)
    if kind.startswith("fp8") and scheme == "per_channel":
        return layouts.fp8_channel(activations=activations)
    if kind == "fp4" and scheme == "per_group" and weight.size("group_size") == layouts.MX_GROUP:
        return layouts.mxfp4(activations=activations)
    if kind == "int8" and scheme == "per_channel":
        return layouts.int8_channel(activations=activations)
    if kind in ("int4", "uint4") and scheme == "per_group":
        packed = layouts.packed_int(4, weight.size("group_size"), symmetric=kind == "int4")
        return replace(packed, name=f"quark-{packed.name}")
    raise unknown(weight, "dtype", "fp8 (per_tensor, per_channel), fp4, int8, int4")


MORE_METHODS: dict[str, Reader] = {
    "eetq": eetq,
    "quanto": quanto,
    "torchao": torchao,
    "hqq": hqq,
    "aqlm": aqlm,
    "bitnet": bitnet,
    "auto-round": auto_round,
    "intel/auto-round": auto_round,
    "quark": quark,
}
