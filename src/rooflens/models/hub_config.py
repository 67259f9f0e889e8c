"""The config of a model on the Hugging Face Hub, downloaded once and kept in the library's own cache."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rooflens.errors import NotFoundError, RooflensError
from rooflens.models.bundled import CONFIG, QUANT_CONFIG, near_bundled
from rooflens.models.checkpoint.hub import HubRepo
from rooflens.models.checkpoint.hub_errors import explain


@dataclass(frozen=True)
class HubConfig:
    """Local copies of a repository's config files; ``note`` says why only the cache was asked, if so."""

    config: Path
    quant_config: Path | None
    note: str | None = None


def _with_suggestions(error: RooflensError, repo_id: str) -> RooflensError:
    near = near_bundled(repo_id)
    if not near or not isinstance(error, NotFoundError):
        return error
    hint = f"bundled with a similar name: {', '.join(near)}"
    return NotFoundError(
        error.what,
        value=error.value,
        allowed=error.allowed,
        next=f"{error.next}; {hint}" if error.next else hint,
    )


def _without_config(repo: HubRepo) -> NotFoundError:
    names = repo.names()
    if repo.problem is not None:
        return NotFoundError(
            f"{repo.repo_id} has no {CONFIG} in the local cache, and {repo.problem.partition(', since ')[2]}",
            next="ask again with the network, or give a local path",
        )
    if any(name.endswith(".gguf") for name in names):
        hint = f"it holds GGUF files: name one as {repo.repo_id}:Q4_K_M or {repo.repo_id}/FILE.gguf"
    elif "params.json" in names or "consolidated.safetensors" in names:
        hint = "it has its vendor's own form: look for the copy in the form of transformers"
    elif "adapter_config.json" in names:
        hint = "it is an adapter: name the model that it adapts"
    else:
        hint = "name a repository that holds a transformers model"
    return NotFoundError(f"{repo.repo_id} has no {CONFIG}", next=hint)


def _download(repo: HubRepo, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        # By the revision's name and not its commit: only then does the cache know the name offline.
        path = hf_hub_download(
            repo.repo_id,
            name,
            revision=repo.revision,
            library_name="rooflens",
            local_files_only=repo.problem is not None,
        )
        return Path(path)
    except Exception as error:  # the library's own and its transport's; a bug would surface in `explain`
        raise explain(error, repo=repo.repo_id, revision=repo.revision, file=name) from None


def repository_names(repo: HubRepo) -> Collection[str]:
    """The names of a repository's files; an error about its own name suggests bundled models."""
    try:
        return repo.names()
    except RooflensError as error:
        raise _with_suggestions(error, repo.repo_id) from None


def fetch_hub_config(repo_id: str, *, revision: str | None = None, repo: HubRepo | None = None) -> HubConfig:
    """Download what describes the model ``repo_id``; honours HF_HUB_OFFLINE, HF_ENDPOINT and the login.

    ``repo``: the same repository where it has been listed already. Raises NotFoundError and InputError in
    one sentence with the next step: a missing repository, revision or config, a gated repository, no
    network and nothing in the cache.
    """
    repo = repo or HubRepo(repo_id, revision=revision)
    try:
        names = repo.names()
        if CONFIG not in names:
            raise _without_config(repo)
        config = _download(repo, CONFIG)
        quant = _download(repo, QUANT_CONFIG) if QUANT_CONFIG in names else None
    except RooflensError as error:
        raise _with_suggestions(error, repo_id) from None
    return HubConfig(config, quant, repo.problem)
