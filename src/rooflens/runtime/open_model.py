"""From what a user names to a description, a tensor source and a tokenizer."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from rooflens.errors import NotFoundError
from rooflens.models.checkpoint.source import open_checkpoint
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.models.families.registry import read_spec
from rooflens.models.gguf_config import spec_from_gguf_metadata
from rooflens.models.read import read_model
from rooflens.models.spec import ModelSpec
from rooflens.runtime.discover import find_packaged, plain_name, unknown_model
from rooflens.runtime.gguf_source import GgufSource
from rooflens.runtime.report import LoadReport
from rooflens.runtime.support import check_weights_known
from rooflens.runtime.tensor_source import CheckpointSource
from rooflens.runtime.tokenizer import (
    TOKENIZER,
    Tokenizer,
    tokenizer_from_directory,
    tokenizer_from_metadata,
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")
_ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint with its headers read and nothing loaded.

    ``spec`` is the model without the types and formats of its files; ``notes`` say what was odd in them;
    ``name`` is what the user called it.
    """

    path: Path
    checkpoint: Checkpoint
    spec: ModelSpec
    notes: tuple[str, ...] = ()
    name: str = ""

    @property
    def directory(self) -> Path:
        """Where the checkpoint's files are."""
        return self.path if self.path.is_dir() else self.path.parent

    def source(self, report: LoadReport) -> CheckpointSource:
        """The checkpoint's tensors under the spec's names."""
        if self.checkpoint.format == "gguf":
            return GgufSource(self.checkpoint, self.directory, report, self.spec)
        return CheckpointSource(self.checkpoint, self.directory, report)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The checkpoint's tokenizer, None where it has none."""
        if self.checkpoint.format == "gguf":
            # llama.cpp's word for a file that has only a vocabulary's size.
            if self.checkpoint.metadata.get("tokenizer.ggml.model", "none") == "none":
                return None
            return tokenizer_from_metadata(self.checkpoint.metadata)
        if not (self.directory / TOKENIZER).is_file():
            return None
        return tokenizer_from_directory(self.directory)


def open_model(name: str | os.PathLike[str]) -> OpenedModel:
    """Read the headers of the checkpoint ``name``: a path, an installed package's model, a Hub id.

    Raises a RooflensError for what cannot be found or read.
    """
    path = locate(name)
    checkpoint = open_checkpoint(path)
    if checkpoint.format == "gguf":
        return OpenedModel(path, checkpoint, _gguf_spec(checkpoint, path), name=os.fspath(name))
    spec = read_model(path if path.is_dir() else path.parent)
    check_weights_known(spec)
    described = spec if spec.stored is None or spec.stored.described is None else spec.stored.described
    return OpenedModel(path, checkpoint, described, spec.notes, name=os.fspath(name))


def locate(name: str | os.PathLike[str]) -> Path:
    """Where the checkpoint ``name`` is on this machine; a Hub repository is downloaded first."""
    text = os.fspath(name)
    path = Path(text).expanduser()
    if path.exists():
        return path
    packaged = find_packaged(text)
    if packaged is not None:
        return packaged.path()
    if isinstance(name, os.PathLike) or text.startswith((".", "~", os.sep)) or text.endswith(".gguf"):
        raise NotFoundError(f"{text} does not exist", next="check the path")
    if _HUB_ID.fullmatch(text):
        return _download(text)
    raise unknown_model(text)


def _download(repo_id: str) -> Path:
    from huggingface_hub import snapshot_download

    from rooflens.models.checkpoint.hub_errors import explain

    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(_HUB_FILES), library_name="rooflens"))
    except Exception as error:  # the library's own and its transport's; a bug would surface in `explain`
        raise explain(error, repo=repo_id, revision=None, file=None) from None


def _gguf_spec(checkpoint: Checkpoint, path: Path) -> ModelSpec:
    shapes = {tensor.name: tensor.shape for tensor in checkpoint.tensors}
    factors = None
    if _ROPE_FACTORS in shapes:
        factors = _rope_factors(checkpoint, path)
    fields = spec_from_gguf_metadata(checkpoint.metadata, tensors=shapes, rope_factors=factors)
    name = checkpoint.metadata.get("general.name") or plain_name(path.name)
    return read_spec(fields, name=str(name), where=path.name)


def _rope_factors(checkpoint: Checkpoint, path: Path) -> list[float]:
    report = LoadReport(str(path), "gguf", "fp32", "cpu")
    source = CheckpointSource(checkpoint, path if path.is_dir() else path.parent, report)
    try:
        target = torch.empty(checkpoint.by_name[_ROPE_FACTORS].shape)
        source.load_into(_ROPE_FACTORS, target)
    finally:
        source.close()
    return [float(value) for value in target.tolist()]
