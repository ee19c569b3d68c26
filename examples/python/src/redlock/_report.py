"""What the library reports: log messages for `logging`, and events for metrics."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from typing import Any, Callable

from ._library import ENDINGS, FAILURES, ON_EVENT, ON_LOG, REASONS, Thread, find, load, noting
from ._waiting import ending

_EVENTS = {1: "acquired", 2: "not acquired", 3: "extended", 4: "not extended", 5: "lost", 6: "ended", 7: "node away",
          8: "node back"}
_WHYS = {2: FAILURES, 4: FAILURES, 5: REASONS, 6: ENDINGS}
# The threads that are in a function for events, or in a logger.
reporting: list[Thread] = []
_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG, 5: 5}


@dataclass(frozen=True)
class Event:
    """What happened: redlock.h describes it at redlock_set_observer."""

    kind: str
    """"acquired", "not acquired", "extended", "not extended", "lost", "ended", "node away", "node back"; "other" in a later version."""
    name: str
    """The name of the lock, or the address of the node."""
    seconds: float
    why: str
    """Not acquired, not extended: "busy", "unavailable" and so on. Lost: as `Lost.reason`. Ended: "released", "not confirmed",
    "dropped", "leaked" or "was lost". Otherwise empty."""
    attempts: int
    renewal: bool
    text: str


def observer(function: Callable[[Event], object]) -> Any:
    def call(event: Any, _user: Any) -> None:
        event = event.contents
        named = ctypes.string_at(event.resource, event.resource_len) if event.resource else event.address
        function(Event(_EVENTS.get(event.kind, "other"), named.decode(errors="replace"), event.time_us / 1e6,
                       _WHYS.get(event.kind, {}).get(event.why, "other" if event.why else ""), event.attempts, bool(event.renewal), (event.text or b"").decode(errors="replace")))

    return ON_EVENT(noting(reporting, call))


# None is dropped: another thread can install its own at the same time, and the one that C calls is that of the last call in C.
_log: list[Any] = []


def log_to(logger: logging.Logger | None, *, library: str | None = None) -> None:
    """Passes what the library logs in this process to a logger, as far as its level is at this moment. None: no longer.

    Do not fork while another thread is in this call. WARNING is worth reading: a node is away or back, a lock was found lost. DEBUG has a line for each attempt."""
    functions = load(find(library))
    if logger is None:
        functions.redlock_set_log(0, ON_LOG(), None)
        return
    to = logger
    level = next((level for level in (5, 4, 3, 2) if to.isEnabledFor(_LEVELS[level])), 1)

    def call(level: int, message: bytes, _user: Any) -> None:
        to.log(_LEVELS.get(level, logging.INFO), "%s", message.decode(errors="replace"))

    callback = ON_LOG(noting(reporting, call))
    _log.append(callback)
    with ending.registering():
        # The library's threads still run while the interpreter ends.
        if not _off:
            _off.append(lambda: functions.redlock_set_log(0, ON_LOG(), None))
            ending.last.extend(_off)
        functions.redlock_set_log(level, callback, None)


_off: list[Callable[[], None]] = []
