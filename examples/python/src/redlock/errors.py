"""The exceptions. The text of each is a whole sentence from the library, without a password."""

from __future__ import annotations

from typing import Sequence


class Error(Exception):
    """Any failure of this module."""


class Busy(Error):
    """Another holder had the lock for the whole wait.

    `label` is the holder's, and `remaining` for how many seconds it has the lock at most, unless it extends or releases it. Both are
    None if that is not known, as after a single attempt. `is_own`: this program itself has the lock, most often a thread that takes
    its own lock again; False does not show that another program has it."""

    label: str | None = None
    remaining: float | None = None
    is_own: bool = False


class Lost(Error):
    """The lock is no longer held: stop the work that it protects.

    `reason` tells why, in the words of `Lock.lost`: "taken", "deleted", "expired" and so on."""

    reason: str | None = None


class TooSlow(Error):
    """Too little of the validity is left. From `ensure`: do not write."""


class Unavailable(Error):
    """Too few nodes answered.

    `causes` has the address of each failed node with its error. `permanent`: these nodes refuse for good, and another try is
    useless. `retry_after`: the seconds until enough nodes vote again after restarts, or 0."""

    causes: Sequence[str] = ()
    permanent: bool = False
    retry_after: float = 0.0


class ExtensionLimit(Error):
    """No more extensions: the lock is valid until its deadline."""


class Config(Error, ValueError):
    """A value that cannot work, now or later."""


class OtherKind(Error):
    """The name is in use as another kind of lock, or for other data: the text tells which. One name is for one kind, so this is
    raised at once, without waiting; the same call succeeds when that lock has ended."""
