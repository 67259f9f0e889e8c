"""Names in safetensors checkpoints: which tensors stand together, and what is not a weight of the decoder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from rooflens.models.checkpoint.tensor import Checkpoint, TensorInfo
from rooflens.models.formats.matching import bare
from rooflens.models.headers.packing import MAIN
from rooflens.models.headers.slots import Slot

#: Computed when a model is made: rotary frequencies, causal masks, numbers of positions; and the scales of
#: an 8-bit cache, which are measured and not trained.
_TABLES = re.compile(
    r"(^|\.)(inv_freq|masked_bias|position_ids|rope\.freqs|(attn|attention)\.bias|num_batches_tracked"
    r"|([kvq]|kv)(_proj)?[._](cache_)?(output_)?(scale|zero_point)|[kv]_bmm_quantizer\..*)$"
)
_ADAPTER = re.compile(r"(^|\.)(lora_[A-Za-z_]+|base_layer|modules_to_save|original_module)\b")
_PREDICTORS = re.compile(r"(^|\.)(mtp|nextn|mtp_block|eh_proj)(\.|_|\d|$)")
#: What towers are called where the config does not describe them.
_TOWERS: dict[str, re.Pattern[str]] = {
    "projector": re.compile(r"(^|\.)(multi_modal_projector|mm_projector|vision_projector|connector|aligner"
                            r"|embed_vision|embed_audio|visual\.merger|mlp1|resampler)(\.|$)"),
    "vision": re.compile(r"(^|\.)(vision\w*|visual|vit|vpm|image_newline|img_processor|siglip\w*)(\.|$)"),
    "audio": re.compile(r"(^|\.)(audio\w*|speech\w*|sound\w*|apm)(\.|$)"),
    "other": re.compile(r"(^|\.)(talker|token2wav|code2wav)(\.|$)"),
}  # fmt: skip
_END_WORDS = 3
_STACKED = re.compile(r"(.*\.experts)\.\{e\}\.(gate_proj|up_proj|down_proj)")
_APART = re.compile(r"(.*\.experts)\.(gate_up_proj|gate_proj|up_proj|down_proj)(\.weight)?")

Members = list[tuple[str, TensorInfo]]


class Names:
    """The tensors of a checkpoint by name and by module, wherever it keeps the language model."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._by_name: Mapping[str, TensorInfo] = checkpoint.by_name
        self._modules: dict[str, Members] = {}
        self._bare: dict[str, TensorInfo | None] | None = None
        modules = self._modules
        for tensor in checkpoint.tensors:
            module, rest = split(tensor.name)
            if module in modules:
                modules[module].append((rest, tensor))
            else:
                modules[module] = [(rest, tensor)]
        self._bare_modules: dict[str, Members] | None = None

    def tensor(self, name: str) -> TensorInfo | None:
        """The tensor of this name, or the only one of its name within the language model."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        if self._bare is None:
            self._bare = {}
            for own, tensor in self._by_name.items():
                short = bare(own)
                self._bare[short] = None if short in self._bare else tensor
        return self._bare.get(bare(name))

    def members(self, module: str) -> Members:
        """(rest of the name, tensor) of everything that belongs to a module, nothing if it is not there."""
        found = self._modules.get(module)
        if found is not None:
            return found
        if self._bare_modules is None:
            self._bare_modules = {}
            for own, members in self._modules.items():
                short = bare(own)
                # Two modules of one name: neither is taken for what another part of the model names.
                self._bare_modules[short] = [] if short in self._bare_modules else members
        return self._bare_modules.get(bare(module), [])

    def complete(self, name: str) -> Members:
        """The tensor of a complete name as ``weight``, and ``NAME_blocks``, ``NAME_scales`` beside it."""
        own = self.tensor(name)
        found: Members = [("weight", own)] if own is not None else []
        parent, _, leaf = name.rpartition(".")
        for rest, tensor in self.members(parent):
            if rest.startswith(f"{leaf}_"):
                found.append((rest.removeprefix(f"{leaf}_"), tensor))
        return found + self.members(name)


def split(name: str) -> tuple[str, str]:
    """(module, rest): ``...q_proj`` and ``weight``; bitsandbytes puts its state below ``weight``."""
    if ".weight." in name:
        module, _, rest = name.partition(".weight.")
        return module, f"weight.{rest}"
    module, _, rest = name.rpartition(".")
    return module, rest


def main_of(members: Members) -> tuple[str, TensorInfo] | None:
    """The tensor that holds a module's weights, and its ending."""
    if members and members[0][0] == MAIN[0]:
        return members[0]
    endings = dict(members)
    return next(((ending, endings[ending]) for ending in MAIN if ending in endings), None)


def matrix_ways(slot: Slot, *, limit: int) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """(complete names?, modules) by which a matrix may be stored: its own, then experts stacked or apart.

    Whoever quantises a model, or saves it anew, may take stacked experts apart or stack them. ``limit``: how
    many tensors there are; experts are not looked for one by one where they are more.
    """
    few = slot.copies <= limit
    if "{e}" in slot.source:
        if few:
            yield slot.complete, tuple(slot.source.replace("{e}", str(e)) for e in range(slot.copies))
        stacked = _STACKED.fullmatch(slot.source)
        if stacked is not None:
            leaf = "down_proj" if stacked[2] == "down_proj" else "gate_up_proj"
            yield True, (f"{stacked[1]}.{leaf}",)
        return
    yield slot.complete, (slot.source,)
    apart = _APART.fullmatch(slot.source) if few and slot.copies > 1 else None
    if apart is not None:
        leaves = ("gate_proj", "up_proj") if apart[2] == "gate_up_proj" else (apart[2],)
        yield False, tuple(f"{apart[1]}.{e}.{leaf}" for leaf in leaves for e in range(slot.copies))


def is_table(name: str) -> bool:
    """Whether nothing in the tensor was trained."""
    return _ends_as(_TABLES, _end(name))


def is_adapter(name: str) -> bool:
    """Whether the tensor is of a LoRA adapter, or of a module that one wraps."""
    return _ends_as(_ADAPTER, _end(name))


def _end(name: str) -> str:
    """The last words of a name: a checkpoint has few of them, however many its layers and experts."""
    return ".".join(name.rsplit(".", _END_WORDS)[-_END_WORDS:])


@lru_cache(maxsize=4096)
def _ends_as(pattern: re.Pattern[str], end: str) -> bool:
    return pattern.search(end) is not None


def predicts(name: str, layer: re.Pattern[str], layers: int) -> bool:
    """Whether the tensor is of a layer for predicting further tokens: called so, or after the last layer."""
    number = layer.match(bare(name))
    return (number is not None and int(number[1]) >= layers) or _PREDICTORS.search(name) is not None


def layer_pattern(prefix: str) -> re.Pattern[str]:
    """An expression for the layer's number in bare names, from the spec's ``layer_prefix``."""
    before, _, after = bare(prefix).partition("{i}")
    return re.compile(rf"{re.escape(before)}(\d{{1,6}}){re.escape(after)}")


def tower_kind(name: str) -> str | None:
    """What a tensor outside the language model seems to be part of, by its name."""
    return next((kind for kind, pattern in _TOWERS.items() if pattern.search(name)), None)
