"""Models read from their own weight files: GGUF by itself, safetensors with the config beside it.

Only headers are read, here or on the Hub: no weight, no numpy, no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rooflens.errors import InputError, NotFoundError, RooflensError
from rooflens.models.bundled import CONFIG
from rooflens.models.checkpoint.selection import count_models
from rooflens.models.checkpoint.source import open_checkpoint, open_folder
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    from rooflens.models.headers.safetensors_model import ConfigSource
    from rooflens.models.hub_config import HubConfig

_BY_CONFIG = f"or name its {CONFIG} to go by that alone"


def read_checkpoint_model(
    path: Path, *, name: str, config: ConfigSource | None, file: str | None = None
) -> ModelSpec:
    """The model whose weights are at ``path``: a file, any part of a split one, or a directory.

    ``config``: the config.json beside them, which safetensors need and GGUF does not. ``file``: which model
    of a directory that holds several, by name or by the label of its quantisation. Raises RooflensError for
    files that are damaged, incomplete, or do not fit their config.
    """
    try:
        checkpoint = open_checkpoint(path, file=file)
        return model_of(checkpoint, name=name, config=config)
    except RooflensError as error:
        raise error if config is None else _with_way_out(error) from None


def model_of(checkpoint: Checkpoint, *, name: str, config: ConfigSource | None) -> ModelSpec:
    """The model of an opened checkpoint. Raises InputError for safetensors without a config."""
    # Each format's readers are imported when it is there: the other's would cost the most.
    if checkpoint.format == "gguf":
        from rooflens.models.headers.gguf_model import gguf_model

        return gguf_model(checkpoint, name=name)
    if config is None:
        raise InputError(
            f"{checkpoint.files[0].name} has no {CONFIG} beside it to say what model it is",
            next=f"put the model's {CONFIG} into the same folder",
        )
    from rooflens.models.headers.safetensors_model import safetensors_model

    return safetensors_model(checkpoint, config)


def _with_way_out(error: RooflensError) -> RooflensError:
    next_step = f"{error.next}, {_BY_CONFIG}" if error.next else _BY_CONFIG.removeprefix("or ")
    if _BY_CONFIG.removeprefix("or ") in (error.next or ""):
        return error
    return type(error)(error.what, value=error.value, allowed=error.allowed, next=next_step)


def read_hub_model(
    repo_id: str,
    *,
    revision: str | None,
    file: str | None,
    config_source: Callable[[HubConfig], ConfigSource],
) -> ModelSpec:
    """The model of a Hub repository, from its config and its files' headers read in place.

    ``file`` as in `read_checkpoint_model`. Weights that cannot be read leave the config alone to count, which
    a note says; without a config they are an error. Raises NotFoundError and InputError with the next step.
    """
    from rooflens.models.checkpoint.hub import HubRepo
    from rooflens.models.hub_config import fetch_hub_config, repository_names

    repo = HubRepo(repo_id, revision=revision)
    names = repository_names(repo)
    name = f"{repo_id}:{file}" if file else repo_id
    found = config = None
    tensors, gguf = count_models(names) if file is None else (int(_is_tensors(file, names)), 0)
    if tensors or (file is None and (CONFIG in names or not gguf)):
        found = fetch_hub_config(repo_id, revision=revision, repo=repo)
        config = config_source(found)
        if not tensors and gguf != 1:
            return _by_config(config, _none_chosen(repo_id, gguf) if gguf else None, found)
    try:
        return model_of(open_folder(repo, file=file), name=name, config=config)
    except RooflensError as error:
        if config is None:
            raise _with_choice(error, repo_id) from None
        return _by_config(config, f"the weights' headers were not read: {error.what}", found)


def _is_tensors(file: str, names: Collection[str]) -> bool:
    """Whether a selection means safetensors: a file of that kind, where a label is always GGUF's."""
    return file.endswith(".safetensors") and file in names


def _by_config(config: ConfigSource, note: str | None, found: HubConfig | None) -> ModelSpec:
    spec = config.read(config.fields)
    notes = [text for text in (note, found.note if found is not None else None) if text]
    return replace(spec, notes=(*spec.notes, *notes)) if notes else spec


def _none_chosen(repo_id: str, models: int) -> str:
    return f"{repo_id} holds {models:,} GGUF models, none of which is read: name one as {repo_id}:Q4_K_M"


def _with_choice(error: RooflensError, repo_id: str) -> RooflensError:
    """Say how one of several quantisations is named."""
    if not isinstance(error, InputError) or "several models" not in error.what:
        return error
    return NotFoundError(error.what, value=error.value, next=f"{error.next}, as {repo_id}:Q4_K_M")
