"""Steps of one token with each layer as one call that torch compiled: nothing to dispatch, fewer passes.

What is compiled is the model's own ``Layer``, computed by the formulas below instead of a kernel set's
operators, with everything that it reads as operands: weights, rotations, the cache and the sequence's blocks.
Layers of one shape share the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from rooflens.models.spec import Attention as AttentionSpec
from rooflens.models.spec import Layer as LayerSpec
from rooflens.models.spec import Rotary
from rooflens.runtime.batch import StepBatch
from rooflens.runtime.blocks.basic import Linear, Norm
from rooflens.runtime.blocks.layer import Layer
from rooflens.runtime.kernels.base import AttentionSettings, PackedLinear
from rooflens.runtime.kernels.compiled import NARROW, Compiled, Formula, compiled, row_product, streams_of
from rooflens.runtime.kernels.cpu import OneDnnLinearWithRows
from rooflens.runtime.kernels.eager import EagerKernels
from rooflens.runtime.kv_cache import PagedKVCache
from rooflens.runtime.model import DecoderModel

if TYPE_CHECKING:
    from rooflens.models.formats.base import WeightFormat

#: Operands before a layer's own: x, cos, sin, place (the token's slot, its position, the position that the
#: first block begins with), blocks, keys, values.
_STEP_OPERANDS = 7
_BLOCKS, _KEYS, _VALUES = 4, 5, 6
#: Tokens of a block whose values are added up in one pass.
_TOKENS_AT_ONCE = 2
#: A layer rounds some ten times, one error on top of the other.
_ROUNDINGS = 8
_EXAMPLE_BLOCKS, _EXAMPLE_CACHE = 3, 5


@dataclass
class _Place:
    """What a layer reads of a step's state, batch and cache, as operands."""

    cos: Tensor
    sin: Tensor
    place: Tensor
    blocks: Tensor
    keys: Tensor
    values: Tensor

    @property
    def cache(self) -> _Place:
        return self

    @property
    def batch(self) -> _Place:
        return self

    @property
    def slot_mapping(self) -> Tensor:
        return self.place[:1]

    def rotation(self, rotary: Rotary) -> tuple[Tensor, Tensor]:
        return self.cos, self.sin

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        for stored, new in ((self.keys, key), (self.values, value)):
            stored.flatten(1, 2).index_copy_(1, slot_mapping, new.to(stored.dtype).transpose(0, 1))


def _made(x: Tensor) -> Tensor:
    """``x``, which the compiler then stores: else it would compute it again wherever it is read."""
    x = x.contiguous()
    return x.as_strided(x.shape, x.stride())


class _Formulas(EagerKernels):
    """The operators as torch's compiler makes good loops of them."""

    def attend(
        self, query: Tensor, cache: PagedKVCache, layer: int, batch: StepBatch, settings: AttentionSettings
    ) -> Tensor:
        """See ``Kernels.attend``, for one query."""
        place = cast("_Place", cache)
        keys, values = place.keys[:, place.blocks].float(), place.values[:, place.blocks].float()
        kv_heads, blocks, block_tokens, head_dim = keys.shape
        heads = _made(query).view(kv_heads, settings.group, 1, 1, head_dim).float()
        scores = (heads * keys[:, None]).sum(-1) * settings.scale
        if settings.softcap is not None:
            scores = settings.softcap * torch.tanh(scores / settings.softcap)
        last = place.place[1]
        position = place.place[2] + torch.arange(blocks * block_tokens).view(blocks, block_tokens)
        seen = position <= last
        if settings.window is not None:
            seen &= position > last - settings.window
        scores = torch.where(seen, scores, float("-inf")).flatten(2)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = weights.sum(-1, keepdim=True)
        weights = _made(weights).view(kv_heads, settings.group, blocks, block_tokens)
        # The tokens of a block one by one: then the innermost loop is the one over features. Few at a time:
        # the compiler would store longer sums before it adds them up over blocks.
        mixed = torch.zeros_like(heads[:, :, 0, 0])
        for first in range(0, block_tokens, _TOKENS_AT_ONCE):
            part = torch.zeros_like(heads[:, :, 0])
            for token in range(first, min(first + _TOKENS_AT_ONCE, block_tokens)):
                part = part + weights[..., token, None] * values[:, None, :, token]
            mixed = mixed + part.sum(2)
        return (mixed / total).reshape(1, -1).to(query.dtype)


class _RowLinear(PackedLinear):
    """A weight and its bias as operands."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def apply(self, x: Tensor) -> Tensor:
        return row_product(_made(x), self.weight, self.bias, streams_of(self.weight))

    def formats(self) -> tuple[tuple[int, WeightFormat], ...]:
        raise NotImplementedError


def _tensors(layer: Layer) -> Iterator[Tensor]:
    """What the modules of ``layer`` hold, in their order."""
    for module in layer.modules():
        if isinstance(module, Linear):
            packed = cast("OneDnnLinearWithRows", module.packed)
            yield packed.weight
            if packed.bias is not None:
                yield packed.bias
        elif isinstance(module, Norm):
            yield from (each for each in (module.weight, module.bias) if each is not None)


def _fill(layer: Layer, tensors: Sequence[Tensor]) -> None:
    """Put ``tensors`` into the modules of ``layer``, in the order of ``_tensors``."""
    rest = iter(tensors)
    for module in layer.modules():
        if isinstance(module, Linear):
            module.packed = _RowLinear(next(rest), next(rest) if module.spec.bias else None)
        elif isinstance(module, Norm):
            module.weight = next(rest) if module.spec.affine else None
            module.bias = next(rest) if module.spec.bias else None


def _formula(layer: Layer, spec: LayerSpec, cache: PagedKVCache) -> Formula:
    """The formula of layers of ``spec``, of which ``layer`` is one."""
    shape, attention, tensors = Layer(spec, 0, _Formulas()), layer.attention.spec, tuple(_tensors(layer))

    def function(x: Tensor, *operands: Tensor) -> Tensor:
        _fill(shape, operands[_STEP_OPERANDS - 1 :])
        result: Tensor = shape(x, _Place(*operands[: _STEP_OPERANDS - 1]))
        return result

    def examples(dtype: torch.dtype, rows: int) -> tuple[Tensor, ...]:
        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(dtype)

        tokens, turned = cache.block_tokens, 1 if attention.rotary is None else attention.rotary.dim
        stored = (attention.kv_heads, _EXAMPLE_CACHE, tokens, attention.head_dim)
        last = _EXAMPLE_BLOCKS * tokens - 1 - rows
        return (
            normal(1, layer.attention.qkv_proj.spec.in_features),
            *(normal(1, 1, turned) for _ in range(2)),
            torch.tensor([last, last, 0]),
            torch.arange(_EXAMPLE_BLOCKS),
            *(normal(*stored) for _ in range(2)),
            *tensors,
        )

    root = files("rooflens.runtime")
    texts = [root / "layer_steps.py", root / "kernels" / "compiled.py", root / "kernels" / "eager.py"]
    texts += sorted((root / "blocks").iterdir(), key=lambda each: each.name)
    source = repr((spec, cache.block_tokens)) + "".join(
        text.read_text(encoding="utf-8") for text in texts if text.name.endswith(".py")
    )
    free = {_BLOCKS: (0,), _KEYS: (1,), _VALUES: (1,)}
    return Formula("layer", function, examples, source, free, _ROUNDINGS)


class CompiledLayers:
    """Runs steps of one token."""

    times_modules = False

    def __init__(self, model: DecoderModel, cache: PagedKVCache, code: Sequence[Compiled]) -> None:
        """``code``: that of every layer of ``model``."""
        self.model, self.cache = model, cache
        one = torch.ones((1, 1, 1), dtype=model.dtype)
        self._unturned = (one, one)
        self._layers = [
            (each.attention.spec, tuple(_tensors(each)), call)
            for each, call in zip(_layers(model), code, strict=True)
        ]

    @classmethod
    def of(cls, model: DecoderModel, cache: PagedKVCache) -> CompiledLayers | str:
        """The runner, or why there is none."""
        # The code reads the cache in the type that it was compiled for, unchecked.
        if model.dtype not in NARROW or any(keys.dtype != model.dtype for keys in cache.keys):
            return f"layers in {model.dtype} over a cache in {cache.dtype} are not compiled"
        code: dict[int, Compiled] = {}
        for group in model.spec.groups:
            layer = _layers(model)[group.indices[0]]
            linears = [module for module in layer.modules() if isinstance(module, Linear)]
            if not all(isinstance(each.packed, OneDnnLinearWithRows) for each in linears):
                return "not all weights are held as rows"
            made = compiled(_formula(layer, group.layer, cache), model.dtype)
            if isinstance(made, str):
                return made
            code.update(dict.fromkeys(group.indices, made))
        return cls(model, cache, [code[index] for index in range(len(model.layers))])

    def takes(self, batch: StepBatch) -> bool:
        """See ``StepRunner.takes``."""
        return batch.tokens == 1

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> Tensor:
        """See ``StepRunner.run``."""
        state = self.model.state(batch, self.cache)
        hidden = self.model.embedding(batch.token_ids)
        places = {spec.window: _seen(batch, spec) for spec, _, _ in self._layers}
        for index, (spec, tensors, call) in enumerate(self._layers):
            turn = self._unturned if spec.rotary is None else state.rotation(spec.rotary)
            stored = self.cache.keys[index], self.cache.values[index]
            hidden = call(hidden, *turn, *places[spec.window], *stored, *tensors)
        return self.model.logits(hidden, batch)


def _layers(model: DecoderModel) -> list[Layer]:
    return cast("list[Layer]", list(model.layers))


def _seen(batch: StepBatch, spec: AttentionSpec) -> tuple[Tensor, Tensor]:
    """(place, blocks) of a step for layers of this window."""
    length, tokens = batch.sequence_lengths[0], batch.block_tokens
    first = 0 if spec.window is None else max(0, length - spec.window) // tokens
    blocks = batch.block_tables[0, first : -(-length // tokens)]
    return torch.tensor([int(batch.slot_mapping[0]), length - 1, first * tokens]), blocks.contiguous()
