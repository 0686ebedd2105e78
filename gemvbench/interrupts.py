"""Signals: the first one stops a run, and no later one loses its report."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stop_once() -> None:
    """From now on a signal raises KeyboardInterrupt, and those after it do nothing."""
    for number in _SIGNALS:
        signal.signal(number, _stop)


def ignore_interrupts() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    ignore_interrupts()
    raise KeyboardInterrupt
