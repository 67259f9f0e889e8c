"""Damage to bytes, and the promise that readers keep under it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from rooflens.errors import RooflensError
from rooflens.models.checkpoint.byte_source import MemorySource
from rooflens.units import MIB

Answer = TypeVar("Answer")

KINDS = ("bit", "number", "big-endian number", "cut", "insert", "delete", "repeat")
INTERESTING = (0, 1, 2, 7, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**61, 2**63, 2**64 - 1)


@st.composite
def damaged(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """A valid file with one to four pieces of damage."""
    raw = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.sampled_from(KINDS)):
            case "bit" if raw:
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case "number":
                width = draw(st.sampled_from([1, 2, 4, 8]))
                number = draw(st.sampled_from(INTERESTING)) % 2 ** (8 * width)
                raw[at : at + width] = number.to_bytes(width, "little")
            case "big-endian number":
                raw[at : at + 8] = draw(st.sampled_from(INTERESTING)).to_bytes(8, "big")
            case "cut":
                del raw[at:]
            case "insert":
                raw[at:at] = draw(st.binary(max_size=16))
            case "delete":
                del raw[at : at + draw(st.integers(1, 64))]
            case "repeat":
                raw[at:at] = raw[at : at + draw(st.integers(1, 64))]
    return bytes(raw)


class Watched(MemorySource):
    """Counts reads, to tell a reader that runs in circles."""

    def __init__(self, data: bytes, name: str, *, size: int | None = None) -> None:
        super().__init__(data, name)
        self.size = len(data) if size is None else size
        self.reads = 0

    def read(self, offset: int, length: int) -> bytes:
        """The data, and zeros up to ``size``."""
        self.reads += 1
        assert length <= 32 * MIB
        length = max(0, min(length, self.size - offset))
        return self._data[offset : offset + length].ljust(length, b"\0")


def survives(read: Callable[[], Answer], *, peak_bytes: int) -> Answer | None:
    """What ``read`` answers, or None if it refuses with an error of ours; within ``peak_bytes`` of memory."""
    tracemalloc.start()
    try:
        return read()
    except RooflensError as error:
        sentence = str(error)
        assert sentence
        assert "\n" not in sentence
        assert len(sentence) < 2000
        sentence.encode()
        error.to_dict()
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= peak_bytes, f"{peak:,} bytes of memory"
