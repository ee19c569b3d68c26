"""Locks on Redis, from redlock-sync's C library, with nothing but ctypes.

    from redlock import Busy, Redlock

    locks = Redlock(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])  # one for the whole program
    with locks.lock("shop:account:17", ttl=10) as lock:  # waits for up to 10 s, then raises Busy
        lock.ensure(1)  # before a write that takes up to a second: raises Lost or TooSlow
        lock.extend(10)

Times are in seconds. All failures are an Error, and a value of another type is a TypeError. A lock is valid until it is released
or its ttl is over, whichever comes first: the header redlock.h explains what that means. A Redlock and a Lock can be used by all
threads. A call that waits holds up no other thread of Python, and handlers of signals run meanwhile: Ctrl-C ends it.
"""

from ._client import Inspection, LastRun, Redlock, Report
from ._lock import Lock
from ._report import Event, log_to
from .errors import Busy, Config, Error, ExtensionLimit, Lost, OtherKind, TooSlow, Unavailable

__all__ = ["Busy", "Config", "Error", "Event", "ExtensionLimit", "Inspection", "LastRun", "Lock", "Lost", "OtherKind", "Redlock", "Report",
           "TooSlow", "Unavailable", "log_to"]
