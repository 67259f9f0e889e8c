"""Ctrl-C between steps: the text so far is kept, and no step is cut in half."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupt:
    """While entered, the first Ctrl-C only sets ``requested``; a second one interrupts as usual.

    Does nothing outside the main thread, or where the program handles Ctrl-C itself.
    """

    def __init__(self) -> None:
        self.requested = False
        self._installed = False

    def __enter__(self) -> Interrupt:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
