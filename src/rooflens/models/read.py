"""The one door to a model: a path, a bundled name, a Hub id or a config's fields become a ModelSpec."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflens.errors import InputError, NotFoundError
from rooflens.models.bundled import CONFIG, QUANT_CONFIG, BundledMatch, match_bundled, near_bundled
from rooflens.models.families.registry import read_spec
from rooflens.models.json_input import read_json_object
from rooflens.models.spec import ModelSpec

if TYPE_CHECKING:
    from rooflens.models.headers.safetensors_model import ConfigSource
    from rooflens.models.hub_config import HubConfig

WEIGHT_SUFFIXES = (".safetensors", ".gguf")

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(\S+))?")
_HUB_PAGE = re.compile(
    r"https?://(?:www\.)?huggingface\.co/([^/\s]+/[^/\s]+?)"
    r"(?:/(?:tree|blob|resolve)/([^/\s]+)(?:/(\S+?\.gguf)(?:\?\S*)?|\S*))?/?"
)
# Similar names are searched for by what is before this: the search takes time.
_LONGEST_NAME = 200
# A file of a repository, by the label of its quantisation or by name, before or after the revision.
_HUB_FILE = re.compile(
    r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?:@([^\s:/]+))?"
    r"(?::([\w.+-]+)|/([\w./+-]+\.(?:gguf|safetensors)))(?:@(\S+))?"
)
_PART = re.compile(r"-\d{5}-of-\d{5}$")

Source = str | os.PathLike[str] | Mapping[str, Any] | ModelSpec

# A source's files by their size and time -> its spec: the second call costs a few microseconds.
_CACHE: dict[tuple[Any, ...], ModelSpec] = {}


def read_model(source: Source) -> ModelSpec:
    """Read the model that ``source`` names; the same spec again while its files stay as they are.

    In this order: an existing path (a directory with a ``config.json``, such a file, a ``.safetensors`` or
    ``.gguf`` file), a bundled name, a Hub id ``OWNER/NAME`` or ``OWNER/NAME@REVISION``, a file on the Hub
    (``OWNER/NAME:Q4_K_M``, ``OWNER/NAME/FILE.gguf``). Where there are weights, their headers are read and
    decide; a config.json that is named itself counts alone. A mapping is taken as the fields of a
    config.json; a ModelSpec is returned as it is. Raises NotFoundError, InputError or UnsupportedError in
    one sentence with the next step.
    """
    if isinstance(source, ModelSpec):
        return source
    if isinstance(source, Mapping):
        return read_spec(source, name=_own_name(source))
    text = os.fspath(source)
    page = _HUB_PAGE.fullmatch(text.strip())
    if page is not None:  # the address of a model's page, as copied from a browser
        text = page[1] if page[2] in (None, "main") else f"{page[1]}@{page[2]}"
        text += f"/{page[3]}" if page[3] else ""
    if not text.strip():
        raise InputError("the model has no name", allowed="a bundled name, a path, or OWNER/NAME on the Hub")
    path = Path(text).expanduser()
    file = None if isinstance(source, os.PathLike) or _exists(path) else _hub_file(text)
    if file is not None:
        return file
    if isinstance(source, os.PathLike) or _looks_like_path(text) or _is_model(path):
        return _from_path(path)
    match = match_bundled(text)
    if match is not None:
        return _from_bundled(match)
    hub = _HUB_ID.fullmatch(text)
    if hub is not None:
        return _from_hub(hub[1], hub[2], headers=True)
    if _exists(path):
        return _from_path(path)  # to say what it lacks
    near = near_bundled(text)
    raise NotFoundError(
        f"no model is called '{text}'",
        allowed="a bundled name, a path, or OWNER/NAME on the Hub",
        next=f"did you mean {', '.join(near)}" if near else None,
    )


def read_named_model(name: str, *, hub: bool) -> ModelSpec:
    """The bundled model of that name or, with ``hub``, a Hub id; never a path: for names from strangers.

    Raises NotFoundError naming the nearest bundled models; otherwise as `read_model`.
    """
    match = match_bundled(name)
    if match is not None:
        return _from_bundled(match)
    repository = _HUB_ID.fullmatch(name.strip()) if hub else None
    if repository is not None:
        return _from_hub(repository[1], repository[2])
    near = near_bundled(name[:_LONGEST_NAME])
    raise NotFoundError(
        "no bundled model has this name",
        value=name,
        allowed="a bundled name or OWNER/NAME on the Hub" if hub else "a bundled name",
        next=f"did you mean {', '.join(near)}" if near else "paste the text of its config.json instead",
    )


def clear_model_cache() -> None:
    """Forget every spec read so far."""
    _CACHE.clear()


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "~", os.sep)) or text.endswith((".json", *WEIGHT_SUFFIXES))


def _hub_file(text: str) -> ModelSpec | None:
    """The model of a file on the Hub; None for other names, and for what lies in a folder of this machine."""
    match = _HUB_FILE.fullmatch(text)
    if match is None or text.endswith(".json") or _exists(Path(text.partition("/")[0])):
        return None
    return _from_hub(match[1], match[2] or match[5], match[3] or match[4], headers=True)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long for a file, or a folder that may not be entered
        return False


def _is_model(path: Path) -> bool:
    if not _exists(path):
        return False
    return path.is_file() or (path / CONFIG).is_file() or bool(_weight_files(path))


def _weight_files(directory: Path) -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.suffix in WEIGHT_SUFFIXES]
    except OSError as error:
        raise InputError(f"the folder {directory} cannot be read: {error.strerror}") from None


def _own_name(fields: Mapping[str, Any]) -> str:
    for field in ("_name_or_path", "name_or_path", "model_type"):
        if isinstance(fields.get(field), str) and fields[field]:
            return str(fields[field])
    return CONFIG


def _path_name(path: Path) -> str:
    """A model's name from its place: the folder's, or the repository's in the Hub's cache."""
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.name != CONFIG:
        return _PART.sub("", path.stem)
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.resolve().name


def _from_path(path: Path) -> ModelSpec:
    if not _exists(path):
        raise NotFoundError(f"{path} does not exist", next="check the path")
    if path.is_file():
        if path.suffix in WEIGHT_SUFFIXES or _begins_as_gguf(path):
            return _from_weights(path)
        return _from_config(path, None, name=_path_name(path))
    weights = _weight_files(path)
    if (path / CONFIG).is_file():
        notes = _left_out(path, weights)
        if notes is None:
            return _from_weights(path)
        quant = path / QUANT_CONFIG
        extra = quant if quant.is_file() else None
        return _from_config(path / CONFIG, extra, name=_path_name(path), notes=notes)
    if weights:
        return _from_weights(path)
    hint = "name a folder with a config.json, or a .safetensors or .gguf file"
    if (path / "params.json").is_file():
        hint = "it has its vendor's own form (params.json): convert it to the form of transformers"
    raise InputError(f"the folder {path} has no {CONFIG} and no weights", next=hint)


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file of another name is GGUF: ollama keeps its models so."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def _left_out(folder: Path, weights: list[Path]) -> tuple[str, ...] | None:
    """Notes on weights beside a config that are not read, since they are no one model; None if they are."""
    if not weights:
        return ()
    from rooflens.models.checkpoint.selection import count_models

    tensors, gguf = count_models([file.name for file in weights])
    if tensors or gguf == 1:
        return None
    if gguf:
        return (f"{folder} holds {gguf:,} GGUF models beside the config, none of which is read: name one",)
    return (f"{weights[0].name} is not the model's weights and is not read",)


def _from_weights(path: Path) -> ModelSpec:
    """A model described by its weight files, and by the config beside them."""
    folder = path if path.is_dir() else path.parent
    key = ("weights", str(path), _stamp(path if path.is_file() else None), *_stamps(folder))
    spec = _CACHE.get(key)
    if spec is None:
        from rooflens.models.checkpoint_model import read_checkpoint_model

        name, config, quant = _path_name(path), folder / CONFIG, folder / QUANT_CONFIG
        source = None
        if config.is_file():
            source = _config_source(config, quant if quant.is_file() else None, name=name)
        spec = read_checkpoint_model(path, name=name, config=source)
        _CACHE[key] = spec
    return spec


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Names, times and sizes of all that a model may be read from; nothing of what may not be looked at."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.endswith((*WEIGHT_SUFFIXES, ".json")):
                status = entry.stat()
                found.append((entry.name, status.st_mtime_ns, status.st_size))
    return sorted(found)


def _config_source(config: Path, quant: Path | None, *, name: str) -> ConfigSource:
    """A config for the readers of headers, who may have to read it with a field changed."""
    from rooflens.models.headers.safetensors_model import ConfigSource

    extra = None if quant is None else read_json_object(quant, what=QUANT_CONFIG)
    return ConfigSource(
        read_json_object(config, what=CONFIG),
        lambda fields: read_spec(fields, name=name, hf_quant_config=extra),
    )


def _stamp(path: Path | None) -> tuple[str, int, int] | None:
    if path is None:
        return None
    stat = path.stat()
    return (str(path), stat.st_mtime_ns, stat.st_size)


def _from_config(config: Path, quant: Path | None, *, name: str, notes: tuple[str, ...] = ()) -> ModelSpec:
    key = (_stamp(config), _stamp(quant), name, notes)
    spec = _CACHE.get(key)
    if spec is None:
        fields = read_json_object(config, what=CONFIG)
        if "weight_map" in fields and "model_type" not in fields:
            raise InputError(f"{config} is the index of a checkpoint, not a config", next="name its folder")
        extra = None if quant is None else read_json_object(quant, what=QUANT_CONFIG)
        spec = read_spec(fields, name=name, hf_quant_config=extra)
        if notes:
            spec = replace(spec, notes=(*spec.notes, *notes))
        _CACHE[key] = spec
    return spec


def _from_bundled(match: BundledMatch) -> ModelSpec:
    key = ("bundled", match.sibling or match.model.id)
    if key in _CACHE:
        return _CACHE[key]
    model = match.model
    quant = model.directory / QUANT_CONFIG
    notes = []
    if match.sibling is not None:
        notes.append(f"answered from the config of {model.id}: the same layers, though limits may differ")
    if not model.fidelity.startswith("verbatim"):
        notes.append(f"the bundled config is not the published file: {model.fidelity}")
    spec = _from_config(
        model.directory / CONFIG,
        quant if quant.is_file() else None,
        name=match.sibling or model.id,
        notes=tuple(notes),
    )
    _CACHE[key] = spec
    return spec


def _from_hub(
    repo_id: str, revision: str | None, file: str | None = None, *, headers: bool = False
) -> ModelSpec:
    """A Hub repository's model; with ``headers`` from those of its weights too, which takes more requests."""
    key = ("hub", repo_id, revision, file, headers)
    spec = _CACHE.get(key)
    if spec is None and headers:
        from rooflens.models.checkpoint_model import read_hub_model

        def source(found: HubConfig) -> ConfigSource:
            return _config_source(found.config, found.quant_config, name=repo_id)

        spec = read_hub_model(repo_id, revision=revision, file=file, config_source=source)
        _CACHE[key] = spec
    elif spec is None:
        from rooflens.models.hub_config import fetch_hub_config

        found = fetch_hub_config(repo_id, revision=revision)
        notes = (found.note,) if found.note else ()
        spec = _from_config(found.config, found.quant_config, name=repo_id, notes=notes)
        _CACHE[key] = spec
    return spec
