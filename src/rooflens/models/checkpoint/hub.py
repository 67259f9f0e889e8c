"""Checkpoints on the Hugging Face Hub, read from their headers without downloading a weight.

huggingface_hub lists the repository, resolves the revision, logs in and sends the requests. Its own header
parsers are not used: they read safetensors only, trust offsets and sizes, and take a whole file from a
server that ignores the range.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rooflens.errors import InputError, NotFoundError
from rooflens.models.checkpoint.byte_source import ByteSource, FileSource
from rooflens.models.checkpoint.hub_errors import explain, is_offline, is_transient
from rooflens.models.checkpoint.range_source import SILENCE_S, RangeSource
from rooflens.models.checkpoint.source import open_folder
from rooflens.models.checkpoint.tensor import Checkpoint
from rooflens.models.file_input import quoted, stays_inside
from rooflens.models.json_input import LIMIT_BYTES, read_json_object
from rooflens.units import format_bytes

_WORKERS = 8


@dataclass(frozen=True, slots=True)
class _Listing:
    """One revision's files and their sizes in bytes, and why it is the cache's if the Hub did not answer."""

    commit: str
    sizes: Mapping[str, int | None]
    cached_because: str | None = None


class HubRepo:
    """One revision of a model repository: a `Folder` whose files are cached here or read over HTTP in ranges.

    The revision is resolved to a commit once, so all files belong together. If the Hub is out of reach or
    HF_HUB_OFFLINE is set, the files in the local cache are all there is, and ``problem`` says so.
    Methods raise NotFoundError and InputError with what to do next.
    """

    workers = _WORKERS

    def __init__(
        self,
        repo_id: str,
        *,
        revision: str | None = None,
        endpoint: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if revision is not None and not stays_inside(revision):
            raise InputError("the revision is not a branch, tag or commit", value=revision)
        self.repo_id = repo_id
        self.revision = revision
        self.where = repo_id
        self._endpoint = endpoint
        self._token = token
        self._cache_dir = cache_dir

    @property
    def commit(self) -> str:
        """The commit that the revision stands for."""
        return self._listing.commit

    @property
    def problem(self) -> str | None:
        """Why only the local cache was read, if so."""
        return self._listing.cached_because

    def names(self) -> Collection[str]:
        """See `Folder.names`."""
        return self._listing.sizes.keys()

    def source(self, name: str) -> ByteSource:
        """See `Folder.source`."""
        if name not in self._listing.sizes:
            raise NotFoundError(f"{self.repo_id} has no file {quoted(name)}")
        cached = self._snapshot(self.commit) / name
        if cached.exists():
            return FileSource(cached, name)
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(self.repo_id, name, revision=self.commit, endpoint=self._endpoint)
        headers = build_hf_headers(token=self._token, library_name="rooflens")
        return RangeSource(url, name, repo=self.repo_id, headers=headers, size=self._listing.sizes[name])

    def read_json(self, name: str, *, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
        """See `Folder.read_json`."""
        source = self.source(name)
        if source.size > limit_bytes:
            raise InputError(
                f"{name} of {self.repo_id} is too large for a JSON file",
                value=format_bytes(source.size),
                allowed=f"at most {format_bytes(limit_bytes, binary=True)}",
            )
        return read_json_object(source.read(0, source.size), what=name, limit_bytes=limit_bytes)

    @cached_property
    def _listing(self) -> _Listing:
        from huggingface_hub import HfApi

        try:
            info = HfApi(endpoint=self._endpoint, token=self._token, library_name="rooflens").model_info(
                self.repo_id, revision=self.revision, files_metadata=True, timeout=SILENCE_S
            )
            files = [file for file in info.siblings or () if stays_inside(file.rfilename)]
            if not info.sha or not stays_inside(info.sha):
                raise ValueError("no commit")
            return _Listing(info.sha, {file.rfilename: file.size for file in files})
        except Exception as error:  # the library's own and its transport's; a bug would surface in `explain`
            if is_offline(error):
                reason = "HF_HUB_OFFLINE is set"
            elif is_transient(error):
                reason = "the Hub could not be reached"
            else:
                raise explain(error, repo=self.repo_id, revision=self.revision) from None
            cached = self._cached_listing(reason)
            if cached is None:
                raise explain(error, repo=self.repo_id, revision=self.revision) from None
            return cached

    def _cached_listing(self, reason: str) -> _Listing | None:
        commit = self.revision or "main"
        reference = self._storage / "refs" / commit
        if reference.is_file():
            commit = reference.read_text(encoding="ascii", errors="replace").strip()
        snapshot = self._snapshot(commit)
        if not snapshot.is_dir():
            return None
        files = [path for path in snapshot.rglob("*") if path.is_file()]
        sizes = {path.relative_to(snapshot).as_posix(): path.stat().st_size for path in files}
        return _Listing(commit, sizes, f"{self.repo_id} was read from the local cache, since {reason}")

    @cached_property
    def _storage(self) -> Path:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        folder: str = repo_folder_name(repo_id=self.repo_id, repo_type="model")
        return Path(self._cache_dir if self._cache_dir is not None else constants.HF_HUB_CACHE) / folder

    def _snapshot(self, commit: str) -> Path:
        return self._storage / "snapshots" / commit


def open_hub_checkpoint(
    repo_id: str,
    *,
    file: str | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    token: str | bool | None = None,
) -> Checkpoint:
    """Read the headers of a model on the Hub: safetensors or GGUF, one file or many, whole files never.

    ``file``: which of several models, by file name or by the label of a GGUF quantisation such as
    ``Q4_K_M``. ``endpoint`` and ``token`` default to HF_ENDPOINT and the saved login.
    Raises NotFoundError and InputError with the next step, and what the readers of the formats raise.
    """
    repo = HubRepo(repo_id, revision=revision, endpoint=endpoint, token=token)
    found = open_folder(repo, file=file)
    if repo.problem is None:
        return found
    return replace(found, problems=(*found.problems, repo.problem))
