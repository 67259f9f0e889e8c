"""The models that come with Rooflens: real config.json files, found by id, bare name or alias, offline."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rooflens.models.json_input import read_json_object

DATA = Path(__file__).parent / "data"

# What describes a model, in a folder or a repository; the second file is ModelOpt's.
CONFIG, QUANT_CONFIG = "config.json", "hf_quant_config.json"

_SEPARATORS = re.compile(r"[\s_:]+")
_LETTER_DIGIT = re.compile(r"(?<=[a-z])(?=\d)")
_HYPHENS = re.compile(r"-{2,}")


@dataclass(frozen=True)
class BundledModel:
    """One bundled config: its Hub ``id``, other names of the same checkpoint, and where the copy is from.

    ``siblings`` are models of the same sizes under other names (fine-tunes). ``fidelity`` says how true
    to the published file the copy is: ``verbatim``, retyped, a copy of its fields, or derived.
    """

    id: str
    fidelity: str
    source: str
    aliases: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """The folder with its ``config.json`` (and ``hf_quant_config.json``)."""
        return DATA / "configs" / self.id.replace("/", "__")


@dataclass(frozen=True)
class BundledMatch:
    """What a name stands for: a bundled model, and the sibling's id where that is what was named."""

    model: BundledModel
    sibling: str | None = None


@lru_cache(maxsize=1)
def bundled_models() -> tuple[BundledModel, ...]:
    """All bundled models, by id."""
    entries = read_json_object(DATA / "index.json", what="index of bundled models")["models"]
    return tuple(
        BundledModel(
            id=entry["id"],
            fidelity=entry["fidelity"],
            source=entry["source"],
            aliases=tuple(entry.get("aliases", ())),
            siblings=tuple(entry.get("siblings", ())),
        )
        for entry in entries
    )


def normalised(name: str) -> str:
    """One spelling for names that people write differently: ``Llama2 7B`` is ``llama-2-7b``."""
    text = _SEPARATORS.sub("-", name.strip().lower())
    return _HYPHENS.sub("-", _LETTER_DIGIT.sub("-", text))


def bare_names(model_id: str) -> tuple[str, ...]:
    """The name without its owner, without the form's suffix and the vendor's prefix."""
    bare = model_id.rpartition("/")[2]
    short = bare.removesuffix("-hf")
    return tuple(dict.fromkeys((bare, short, short.removeprefix("Meta-"))))


@lru_cache(maxsize=1)
def _names() -> dict[str, BundledMatch]:
    models = bundled_models()
    table: dict[str, BundledMatch] = {}
    for model in models:
        table.setdefault(normalised(model.id), BundledMatch(model))
    # What was written down for a model goes before what its name merely suggests.
    for model in models:
        for alias in model.aliases:
            table.setdefault(normalised(alias), BundledMatch(model))
    for model in models:
        for name in (*bare_names(model.id), *(bare for x in model.aliases for bare in bare_names(x))):
            table.setdefault(normalised(name), BundledMatch(model))
    for model in models:
        for sibling in model.siblings:
            for name in (sibling, *bare_names(sibling)):
                table.setdefault(normalised(name), BundledMatch(model, sibling))
    return table


def match_bundled(name: str) -> BundledMatch | None:
    """The bundled model or sibling that ``name`` stands for, or None; case and separators do not matter.

    A name with an owner matches only that owner's model.
    """
    return _names().get(normalised(name))


def find_bundled(name: str) -> BundledModel | None:
    """The bundled model whose sizes ``name`` has (see `match_bundled`), or None."""
    match = match_bundled(name)
    return match.model if match else None


def near_bundled(name: str, *, count: int = 3) -> list[str]:
    """Ids of bundled models with names like ``name``, best first."""
    wanted = normalised(name)
    bare = wanted.rpartition("/")[2]
    names = _names()
    near = difflib.get_close_matches(wanted, names, n=2 * count, cutoff=0.6)
    near += difflib.get_close_matches(bare, names, n=2 * count, cutoff=0.6)
    ids = (names[key].sibling or names[key].model.id for key in near)
    return list(dict.fromkeys(ids))[:count]
