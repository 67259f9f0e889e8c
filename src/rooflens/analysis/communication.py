"""What devices send to each other in a step: over links within a node, over the network between nodes."""

from __future__ import annotations

from dataclasses import dataclass

from rooflens.analysis.numeric import Quantity
from rooflens.analysis.parallelism import Layout
from rooflens.errors import InputError
from rooflens.models.formats.base import dtype_bytes
from rooflens.models.spec import MixtureOfExperts, ModelSpec
from rooflens.units import GIGA

DEVICES_PER_NODE = 8
NETWORK_BYTES_PER_S = 50 * GIGA
"""One port of 400 Gbit/s for each device, as in machines of eight data-centre GPUs: assumed if not given."""


@dataclass(frozen=True)
class Network:
    """Nodes: how many devices share a machine's links, and what each sends to other machines in bytes/s."""

    devices_per_node: int = DEVICES_PER_NODE
    bytes_per_s_per_device: float = NETWORK_BYTES_PER_S
    assumed: bool = True


DEFAULT_NETWORK = Network()


def network_of(devices_per_node: int | None, bytes_per_s: float | None) -> Network:
    """The network as far as it is given. Raises InputError for what cannot be."""
    if devices_per_node is not None and devices_per_node < 1:
        raise InputError(
            "devices_per_node is not usable", value=devices_per_node, allowed="a whole number from 1"
        )
    if bytes_per_s is not None and not bytes_per_s > 0:
        raise InputError("network must be positive", value=bytes_per_s, allowed="bytes a second")
    return Network(
        devices_per_node or DEVICES_PER_NODE, bytes_per_s or NETWORK_BYTES_PER_S, bytes_per_s is None
    )


@dataclass(frozen=True)
class Traffic:
    """What one device sends in a step: ``link_bytes`` to devices of its node in ``link_starts`` collectives
    of ``local`` devices, ``network_bytes`` to others in ``network_starts`` of ``nodes``."""

    link_bytes: Quantity
    link_starts: float
    local: int
    network_bytes: Quantity
    network_starts: float
    nodes: int


def all_reduces(spec: ModelSpec, layout: Layout) -> float:
    """All-reduces of a step on one pipeline stage: one after each mixer and each MLP, none without tp.

    Experts that data-parallel replicas share are reached by all-to-alls instead.
    """
    if layout.tp == 1 or spec.free_form is not None:
        return 0
    after_mlps = sum(g.count for g in spec.groups if g.layer.mlp is not None)
    if shares_experts(layout):
        after_mlps -= _sparse_layers(spec)
    reduces = sum(len(g.layer.mixers) * g.count for g in spec.groups) + after_mlps
    return reduces / layout.pp


def all_to_alls(spec: ModelSpec, layout: Layout) -> float:
    """All-to-alls of a step on one stage: to the experts and back, where replicas share them."""
    if not shares_experts(layout) or spec.free_form is not None:
        return 0
    return 2 * _sparse_layers(spec) / layout.pp


def collectives(spec: ModelSpec, layout: Layout) -> float:
    """All-reduces and all-to-alls of a step on one stage, and its hand-over to the next."""
    handed = 1 if layout.pp > 1 else 0
    return all_reduces(spec, layout) + all_to_alls(spec, layout) + handed


def group_size(layout: Layout) -> int:
    """Devices of the largest group that speaks together."""
    return max(layout.tp, layout.ep, 2 if layout.pp > 1 else 1)


def shares_experts(layout: Layout) -> bool:
    """Whether data-parallel replicas deal the experts out among themselves (attention data parallel)."""
    return layout.ep > 1 and layout.dp > 1


def _sparse_layers(spec: ModelSpec) -> int:
    return sum(g.count for g in spec.groups if isinstance(g.layer.mlp, MixtureOfExperts))


def _visits(spec: ModelSpec) -> int:
    """Experts that a token visits in a layer."""
    found = (g.layer.mlp.top_k for g in spec.groups if isinstance(g.layer.mlp, MixtureOfExperts))
    return max(found, default=0)


def communication_bytes(
    spec: ModelSpec, layout: Layout, *, tokens: Quantity, least: bool = False
) -> Quantity:
    """Bytes one device sends in a step: two all-reduces a layer under tp, one hand-over under pp.

    Ring all-reduce: 2 (n - 1) / n of the payload, tokens x hidden elements. ``least`` is for bounds:
    a switch that adds up on the way (NVLink SHARP) lets every device send its payload once. To shared
    experts and back each rank sends its tokens to top_k experts, of which (ep - 1) / ep are elsewhere; at
    the least all of them could be its own.
    """
    factor = 1.0 if least else 2 * (layout.tp - 1) / layout.tp
    payload = tokens * (spec.hidden_size * dtype_bytes(spec.dtype))
    sent: Quantity = 0 * payload
    if layout.tp > 1 and spec.free_form is None:
        sent = payload * (all_reduces(spec, layout) * factor)
    if not least and shares_experts(layout):
        away = _visits(spec) * (layout.ep - 1) / layout.ep / layout.tp
        sent = sent + payload * (all_to_alls(spec, layout) * away)
    if layout.pp > 1:
        sent = sent + payload / layout.tp
    return sent


def traffic(spec: ModelSpec, layout: Layout, network: Network, *, tokens: Quantity) -> Traffic:
    """What a device sends in a step, by the way it takes.

    A group of n devices over m nodes, l = n / m in each, reduces in three parts: scattered and gathered again
    within a node, 2 (l - 1) / l of the payload a device, and in between a share of 1 / l over the network,
    2 (m - 1) / m of that. Of what goes to shared experts (ep - l) / ep leaves the node. Stages of a pipeline
    hand over within a node where two neighbours share one. Source: NCCL's and MPI's hierarchical collectives.
    """
    size = network.devices_per_node
    group = group_size(layout)
    whole = communication_bytes(spec, layout, tokens=tokens)
    starts = collectives(spec, layout)
    if layout.tp * layout.pp <= size and group <= size:
        return Traffic(whole, starts, group, 0.0 * whole, 0.0, 1)
    payload = tokens * (spec.hidden_size * dtype_bytes(spec.dtype))
    link: Quantity = 0.0 * payload
    wide: Quantity = 0.0 * payload
    reduces, exchanges, crossing = all_reduces(spec, layout), all_to_alls(spec, layout), 0.0
    if reduces:
        local = min(layout.tp, size)
        nodes = layout.tp / local
        link = link + payload * reduces * 2 * (local - 1) / local
        wide = wide + payload * reduces * 2 * (nodes - 1) / nodes / local
        crossing += reduces if nodes > 1 else 0
    if exchanges:
        local = min(layout.ep, size)
        visits = _visits(spec) / layout.ep / layout.tp
        link = link + payload * exchanges * visits * (local - 1)
        wide = wide + payload * exchanges * visits * (layout.ep - local)
        crossing += exchanges if layout.ep > local else 0
    if layout.pp > 1:
        apart = min(1.0, (-(-layout.tp * layout.pp // size) - 1) / (layout.pp - 1))
        link = link + payload / layout.tp * (1 - apart)
        wide = wide + payload / layout.tp * apart
        crossing += apart
    return Traffic(link, starts, min(group, size), wide, crossing, max(2, -(-group // size)))
