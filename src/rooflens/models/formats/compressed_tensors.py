"""compressed-tensors: groups of modules by class, name or expression, a scheme each, and a list to ignore.

Source: the config classes of compressed-tensors, and the order in which vLLM looks for a module's group
(its name first, then its class).
"""

from __future__ import annotations

from collections.abc import Mapping

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.families.config import Config
from rooflens.models.formats import layouts
from rooflens.models.formats.base import WeightFormat
from rooflens.models.formats.matching import Patterns, pattern_list
from rooflens.models.formats.methods import block_sides, unknown
from rooflens.models.formats.quantization import Quantization
from rooflens.models.formats.rewrite import BLOCK_ROLES, Matrix, Role

# The classes that a target may name, as roles. Routers are matched by name only: in most models they are
# no Linear, and where they are every published recipe ignores them.
_CLASSES = {
    "Linear": BLOCK_ROLES | {Role.HEAD, Role.OUTSIDE},
    "Embedding": frozenset({Role.EMBEDDING}),
}
_DENSE = ("dense", None)


def kv_cache_scheme(cfg: Config) -> str | None:
    """The cache type of ``kv_cache_scheme``, in the spelling of ``kv_format``."""
    scheme = cfg.section("kv_cache_scheme")
    if scheme is None:
        return None
    kind, bits = scheme.text("type", default="float"), scheme.size("num_bits")
    known = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "nvfp4"}
    if (kind, bits) not in known:
        raise unknown(cfg, "kv_cache_scheme", "8-bit float or int, 4-bit float")
    return known[kind, bits]


def group_layout(group: Config, default_format: str) -> WeightFormat | None:
    """The layout of one config group; None where it quantises activations only."""
    weights, inputs = group.section("weights"), group.section("input_activations")
    if weights is None:
        return None
    kind, bits = weights.text("type", default="int"), weights.size("num_bits", default=8)
    strategy = weights.text("strategy", default="")
    if kind == "float" and bits == 4:
        return _fp4(weights, inputs, group.text("format", default=default_format))
    if kind == "float" and bits == 8:
        return _fp8(weights, inputs, strategy)
    if kind == "int" and bits in (2, 3, 4, 5, 6, 7, 8):
        return _int(weights, inputs, bits, strategy)
    raise unknown(weights, "num_bits", "2 to 8 bits int, 4 or 8 bits float")


def _fp4(weights: Config, inputs: Config | None, packed: str) -> WeightFormat:
    if packed.startswith("mxfp4") or weights.size("group_size") == layouts.MX_GROUP:
        return layouts.mxfp4(activations=inputs is not None)
    return layouts.nvfp4(weights.size("group_size"), activations=inputs is not None)


def _fp8(weights: Config, inputs: Config | None, strategy: str) -> WeightFormat:
    static = inputs is not None and not inputs.flag("dynamic", default=False)
    if strategy == "block":
        sides = block_sides(weights, "block_structure") or (layouts.FP8_BLOCK, layouts.FP8_BLOCK)
        return layouts.fp8_block(*sides, activations=inputs is not None)
    if strategy == "channel":
        return layouts.fp8_channel(scale_bits=layouts.HALF, activations=inputs is not None)
    if strategy == "group" and weights.size("group_size") == layouts.MX_GROUP:
        return layouts.mxfp8(activations=inputs is not None)
    if strategy in ("", "tensor"):
        return layouts.fp8_tensor(static_activations=static)
    raise unknown(weights, "strategy", "tensor, channel, block, group of 32")


def _int(weights: Config, inputs: Config | None, bits: int, strategy: str) -> WeightFormat:
    activations = inputs is not None and inputs.size("num_bits", default=8) == 8
    by_group = strategy == "group" or (not strategy and weights.get("group_size") not in (None, -1))
    if bits == 8 and not by_group:
        return layouts.int8_channel(activations=activations)
    order = weights.get("actorder")
    compute = None
    if activations and inputs is not None:
        compute = "fp8" if inputs.text("type", default="int") == "float" else "int8"
    return layouts.packed_int(
        bits,
        weights.size("group_size") if by_group else -1,
        symmetric=weights.flag("symmetric", default=True),
        act_order=order is True or order in ("group", "dynamic"),
        compute_dtype=compute,
    )


def compressed_tensors(cfg: Config) -> Quantization:
    """The config_groups, the ignore list and the cache scheme."""
    sparsity = cfg.section("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in _DENSE:
        raise unknown(sparsity, "format", "dense (compressed sparse weights have no size of their own)")
    groups = cfg.section("config_groups")
    if groups is None or not groups.fields:
        raise InputError(f"{cfg.where} has no config_groups")
    by_name: list[tuple[Patterns, WeightFormat]] = []
    by_role: dict[Role, WeightFormat] = {}
    for name, value in groups.fields.items():
        if not isinstance(value, Mapping):
            raise InputError(f"{groups.where}: {name} is not an object", value=value)
        group = Config(value, where=f"{groups.where}: {name}")
        layout = group_layout(group, cfg.text("format", default="dense"))
        if layout is None:
            continue
        targets = pattern_list(group.get("targets"), field=f"{group.where}: targets")
        for target in targets:
            for role in _class_roles(group, target):
                by_role.setdefault(role, layout)
        named = [target for target in targets if target not in _CLASSES]
        if named:
            by_name.append((Patterns(named, field=f"{group.where}: targets"), layout))
    ignored = Patterns(
        pattern_list(cfg.get("ignore"), field=f"{cfg.where}: ignore"), field=f"{cfg.where}: ignore"
    )

    def choose(matrix: Matrix) -> WeightFormat | None:
        if ignored.match(matrix):
            return None
        for named, layout in by_name:
            if named.match(matrix):
                return layout
        return by_role.get(matrix.role)

    return Quantization("compressed-tensors", choose, kv_scheme=kv_cache_scheme(cfg))


def _class_roles(group: Config, target: str) -> frozenset[Role]:
    if target in _CLASSES:
        return _CLASSES[target]
    if target.startswith("re:") or "." in target or not target[:1].isupper():
        return frozenset()
    raise UnsupportedError(
        f"{group.where}: the target class is not covered", value=target, allowed=", ".join(_CLASSES)
    )
