"""Ctrl-C and SIGTERM: a wish to stop, for work that must not end just anywhere, or an error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Ctrl-C and SIGTERM as a flag; a context manager.

    After the first signal the handlers from before are back, so that a second one is not held back.
    A signal that is ignored, as in the background of some shells, stays so.  Signals reach the main
    thread only; in another, nothing changes.
    """

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._handlers[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: Any) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that what is half written is removed on the way out.

    Unless somebody has chosen what it does, and in the main thread only.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
