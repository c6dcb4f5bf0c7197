"""Signals wait while files change, and are asked about at points where stopping is safe."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from patcher.errors import InterruptedError_

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The signal that came, if any."""

    def __init__(self) -> None:
        self.arrived: signal.Signals | None = None

    def note(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler."""
        self.arrived = signal.Signals(number)

    def check(self) -> None:
        """Stop here if a signal came.

        Raises:
            InterruptedError_: with the exit code of that signal.
        """
        if self.arrived is not None:
            error = InterruptedError_(
                f"interrupted by {self.arrived.name}; the checkpoint is as it was before"
            )
            error.exit_code = 128 + self.arrived
            raise error


@contextmanager
def deferred() -> Iterator[Interrupts]:
    """Hold back SIGINT, SIGTERM and SIGHUP, those that are not ignored, inside the block.

    Python delivers signals to the main thread only; in any other nothing needs holding back.
    """
    interrupts = Interrupts()
    former = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler not in {signal.SIG_IGN, None}:
                former[number] = handler
                signal.signal(number, interrupts.note)
    try:
        yield interrupts
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def late(interrupts: Interrupts) -> Iterator[str]:
    """A sentence about a signal that came too late to stop anything."""
    if interrupts.arrived is not None:
        yield f"{interrupts.arrived.name} came when all was written; the work is done"
