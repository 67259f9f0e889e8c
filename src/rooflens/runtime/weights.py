"""Fill a model's modules from a tensor source: read, check, fuse, pack and free, one module at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from rooflens.errors import InputError, UnsupportedError
from rooflens.models.checkpoint.source import open_checkpoint
from rooflens.models.file_input import quoted
from rooflens.models.spec import Linear as LinearSpec
from rooflens.models.spec import ModelSpec
from rooflens.runtime.blocks.basic import Linear, Norm
from rooflens.runtime.gguf_source import GgufSource
from rooflens.runtime.held import head_holding
from rooflens.runtime.kernels.base import WeightHolding
from rooflens.runtime.model import DecoderModel
from rooflens.runtime.report import LoadReport
from rooflens.runtime.tensor_source import CheckpointSource, TensorSource

#: Tensors that checkpoints carry and that follow from the config.
_DERIVED = ("rotary_emb.inv_freq", "rope_freqs.weight", "masked_bias", "attn.bias")
HOLDINGS: tuple[WeightHolding, ...] = get_args(WeightHolding)
#: As the file has them, where there are kernels for that.
STORED = "stored"


def load_weights(
    model: DecoderModel,
    source: TensorSource,
    report: LoadReport,
    *,
    holding: WeightHolding = "plain",
    device: torch.device | str = "cpu",
    stored: bool = False,
) -> None:
    """Give every module of ``model`` its weights from ``source``, and write into ``report``.

    The head comes first: its copy for packing is the largest, and then nothing else is held yet. With
    int4 the head is kept in int8, which costs little time and much less quality. With ``stored`` matrices
    stay at the width of their GGUF file where the kernels take that; ``holding`` is for the others.
    Raises a RooflensError naming the tensor that is missing, unknown, of another shape or not finite.
    """
    loader = _Loader(model, source, report, torch.device(device), holding, stored)
    spec = model.spec
    for_head = head_holding(holding)
    if not spec.tied:
        loader.linear(model.lm_head, "", for_head)
    loader.table(for_head)
    loader.norm(model.final_norm, "")
    for index, layer in enumerate(model.layers):
        prefix = spec.layer_prefix.format(i=index)
        for module in layer.modules():
            if isinstance(module, Linear):
                loader.linear(module, prefix, holding)
            elif isinstance(module, Norm):
                loader.norm(module, prefix)
    check_leftovers(source.leftovers(), spec)
    report.kernels = model.kernels.describe()


def check_leftovers(names: Iterable[str], spec: ModelSpec) -> None:
    """Raise InputError for tensors that the model has no place for."""
    components = tuple(component.name for component in spec.components)
    head = f"{spec.head.parts[0].source}.weight" if spec.head else ""
    unknown = [
        name
        for name in names
        if not name.endswith(_DERIVED)
        and not (spec.tied and name == head)
        and not any(component in name for component in components)
    ]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise InputError(
            f"the checkpoint has tensors that {spec.name} has no place for: "
            f"{', '.join(quoted(name) for name in unknown[:3])}{more}",
            next="check that config and weights belong together",
        )


class _Loader:
    """One load: where tensors come from and where they go."""

    def __init__(
        self,
        model: DecoderModel,
        source: TensorSource,
        report: LoadReport,
        device: torch.device,
        holding: WeightHolding,
        stored: bool,
    ) -> None:
        self.stored = stored
        self.model = model
        self.source = source
        self.report = report
        self.device = device
        self.holding = holding

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of this name, checked, on the device."""
        target = torch.empty(shape, dtype=dtype or self.model.dtype)
        self.source.load_into(name, target)
        _check_finite(name, target)
        return target.to(self.device)

    def table(self, for_head: WeightHolding) -> None:
        """Read the token table, and pack it as the head where it is tied.

        A head that can give rows back is the table too. Else the table stays beside it.
        """
        model, report, spec = self.model, self.report, self.model.spec
        name, shape = f"{model.embedding.spec.source}.weight", (spec.vocab_size, spec.hidden_size)
        if spec.tied and self._keep(model.lm_head, [name], None):
            model.embedding.packed = model.lm_head.packed
            return
        table = self.tensor(name, shape, self._read_as(for_head) if spec.tied else None)
        if spec.tied:
            self.pack(model.lm_head, table, None, for_head)
            if model.lm_head.packed.gives_rows:
                model.embedding.packed = model.lm_head.packed
                return
        model.embedding.weight = table.to(model.dtype)
        report.held["embedding table"] += model.embedding.weight.nbytes
        if spec.tied and getattr(model.lm_head.packed, "weight", None) is table:
            report.held[model.lm_head.packed.holding] -= table.nbytes
        elif spec.tied:
            report.head_copied = True
            report.note("the tied table is held twice: as rows for the lookup, packed for the head")

    def linear(self, module: Linear, prefix: str, holding: WeightHolding) -> None:
        """Read the parts of ``module`` into one matrix and pack it."""
        spec = module.spec
        self._refuse_bias(spec, prefix)
        bias = self._bias(spec, prefix)
        names = [f"{prefix}{part.source}.weight" for part in spec.parts]
        if self._keep(module, names, bias):
            return
        weight = torch.empty((spec.out_features, spec.in_features), dtype=self._read_as(holding))
        row = 0
        for part, name in zip(spec.parts, names, strict=True):
            rows = slice(row, row + part.out_features)
            self.source.load_into(name, weight[rows])
            _check_finite(name, weight[rows])
            row = rows.stop
        self.pack(module, weight.to(self.device), bias, holding)

    def _bias(self, spec: LinearSpec, prefix: str) -> Tensor | None:
        if not spec.bias:
            return None
        bias = torch.empty(spec.out_features, dtype=self.model.dtype)
        row = 0
        for part in spec.parts:
            name, rows = f"{prefix}{part.source}.bias", slice(row, row + part.out_features)
            self.source.load_into(name, bias[rows])
            _check_finite(name, bias[rows])
            row = rows.stop
        return bias.to(self.device)

    def _read_as(self, holding: WeightHolding) -> torch.dtype:
        """The type to read a matrix in before it is packed: rounding to bf16 first would cost quality."""
        wide = holding != "plain" and self.model.kernels.quantises_wide and self.device.type == "cpu"
        return torch.float32 if wide and isinstance(self.source, GgufSource) else self.model.dtype

    def _keep(self, module: Linear, names: list[str], bias: Tensor | None) -> bool:
        """Hold the matrix as its file has it, where that is wanted and possible."""
        if not self.stored or not isinstance(self.source, GgufSource) or self.device.type != "cpu":
            return False
        columns, kernels = module.spec.in_features, self.model.kernels
        if not kernels.keeps([self.source.kind(name) for name in names], columns):
            return False
        sizes = [part.out_features for part in module.spec.parts]
        parts = [self.source.blocks(name, (rows, columns)) for name, rows in zip(names, sizes, strict=True)]
        module.packed = kernels.pack_stored(parts, bias, in_features=columns)
        self.report.held[module.packed.holding] += module.packed.nbytes
        return True

    def _refuse_bias(self, spec: LinearSpec, prefix: str) -> None:
        for part in spec.parts:
            if not spec.bias and self._stored_bias(f"{prefix}{part.source}.bias"):
                raise InputError(
                    f"the checkpoint has a bias that the model's description does not: {prefix}{part.source}"
                )

    def _stored_bias(self, name: str) -> bool:
        return isinstance(self.source, CheckpointSource) and self.source.has(name)

    def pack(self, module: Linear, weight: Tensor, bias: Tensor | None, holding: WeightHolding) -> None:
        """Hand the matrix to the kernels."""
        module.packed = self.model.kernels.pack(weight, bias, holding=holding)
        self.report.held[module.packed.holding] += module.packed.nbytes

    def norm(self, module: Norm, prefix: str) -> None:
        """Read a norm; a weight with an offset is kept in fp32, where the sum is exact."""
        spec = module.spec
        name = f"{prefix}{spec.source}"
        if spec.affine:
            wide = torch.float32 if spec.offset or spec.dtype == "fp32" else self.model.dtype
            weight = self.tensor(f"{name}.weight", (spec.size,), wide)
            if spec.offset and not self.source.norms_include_offset:
                weight = weight + spec.offset
            module.weight = weight
            self.report.held["norms"] += weight.nbytes
        if spec.bias:
            module.bias = self.tensor(f"{name}.bias", (spec.size,))
            self.report.held["norms"] += module.bias.nbytes


def _check_finite(name: str, values: Tensor) -> None:
    # A sum is one pass at the speed of memory; only a suspicious one is looked at closely.
    if not torch.isfinite(values.sum(dtype=torch.float32)):
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise InputError(
                f"tensor {quoted(name)} has {bad:,} values that are not finite",
                next="the checkpoint is damaged: download it again",
            )


def parse_holding(text: str | None) -> WeightHolding:
    """How weights are to be held: None, ``stored`` and the compute types mean as they are, else quantised."""
    if text is None or text in ("plain", STORED, "bf16", "fp16", "fp32"):
        return "plain"
    if text not in HOLDINGS:
        raise UnsupportedError(
            "the runtime cannot hold weights so", value=text, allowed=", ".join((*HOLDINGS, STORED))
        )
    return text


def load_qwen2_weights(model: DecoderModel, path: str | os.PathLike[str]) -> LoadReport:
    """Fill a ``Qwen2Model`` from the safetensors checkpoint at ``path`` (a directory or a file).

    Raises UnsupportedError for a model of another type and what ``load_weights`` raises.
    """
    if model.spec.model_type != "qwen2":
        raise UnsupportedError(
            f"{model.spec.name} is not a Qwen2 model", value=model.spec.model_type, allowed="qwen2"
        )
    place = Path(path)
    checkpoint = open_checkpoint(place)
    report = LoadReport(str(path), checkpoint.format, str(model.dtype).removeprefix("torch."), "cpu")
    source = CheckpointSource(checkpoint, place if place.is_dir() else place.parent, report)
    try:
        load_weights(model, source, report)
    finally:
        source.close()
    return report
