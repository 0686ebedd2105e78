"""What can go wrong for a user, and the exit code that says so."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line; never a count of anything."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    WRONG = 3
    """A wrong result, or an arm that failed (crash, hang, compile error)."""
    NO_DEVICE = 4
    """No device, a voided run, or results that cannot be compared."""


class UserError(Exception):
    """One clear paragraph for the user: what, where, what to do. Never a traceback."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.code = code


class CompileError(Exception):
    """A kernel that does not compile; the message is the compiler's log with file and line."""
