"""Where what is compiled on this machine is kept, so that it is compiled once: the user's cache folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: How long a process waits for another that builds the same.
BUILD_LIMIT_S = 300


def cache_folder(kind: str) -> Path:
    """The folder for things of this ``kind``, by the platform's convention."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "rooflens" / kind
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "rooflens" / kind


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else builds in ``folder`` meanwhile. Where there are no locks, both do the work, and the last
    whole file stays."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / "build.lock")
    try:
        lock.acquire(timeout=BUILD_LIMIT_S)
    except (Timeout, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def say(text: str, *, for_people: bool = False) -> None:
    """A line on standard error: answers go to standard output. Whole lines, because a spinner may run there;
    ``for_people``: only where somebody watches."""
    if not for_people or sys.stderr.isatty():
        print(f"rooflens: {text}", file=sys.stderr, flush=True)
