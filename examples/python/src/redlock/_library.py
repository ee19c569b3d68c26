"""The C library: its functions, and its failures as exceptions. The header redlock.h describes each function."""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import threading
import weakref
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Tuple

from .errors import Busy, Config, Error, ExtensionLimit, Lost, OtherKind, TooSlow, Unavailable

NAME = "libredlock_sync.so"
FOREVER = 2**64 - 1
TOKEN_SIZE = 20
# Why a lock was lost, how one ended, and why there is none.
REASONS = {1: "taken", 2: "expired", 3: "hold limit", 4: "deleted", 5: "not held", 6: "other process", 7: "released"}
ENDINGS = {1: "released", 2: "not confirmed", 3: "dropped", 4: "leaked", 5: "was lost"}
FAILURES = {1: "busy", 2: "lost", 3: "too slow", 4: "unavailable", 5: "extension limit", 6: "cancelled", 7: "config",
            10: "other kind"}


class Cancelled(Error):
    """The function of `redlock_set_keep_trying` ended the wait. Not for programs: the caller raises the reason."""


ERRORS: dict[int, type[Error]] = {
    1: Busy, 2: Lost, 3: TooSlow, 4: Unavailable, 5: ExtensionLimit, 6: Cancelled, 7: Config, 10: OtherKind}


class Event(ctypes.Structure):
    """redlock_event_t."""

    _fields_ = [("kind", c_int), ("why", c_int), ("resource", c_void_p), ("resource_len", c_size_t), ("time_us", c_uint64),
                ("attempts", c_uint32), ("renewal", c_int), ("node", c_size_t), ("address", c_char_p), ("text", c_char_p)]


KEEP_TRYING = ctypes.CFUNCTYPE(c_int, c_void_p)
ON_LOST = ctypes.CFUNCTYPE(None, c_int, c_void_p)
ON_EXPIRING = ctypes.CFUNCTYPE(None, c_uint64, c_void_p)
ON_EVENT = ctypes.CFUNCTYPE(None, POINTER(Event), c_void_p)
ON_LOG = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)

_HANDLE = POINTER(c_void_p)
_BYTES = [c_char_p, c_size_t]
_DOCUMENT = [c_char_p, c_size_t, POINTER(c_size_t)]
_NAMES = [POINTER(c_char_p), POINTER(c_size_t), c_size_t]
_TIMES = [c_uint64, c_uint64, _HANDLE]
_TOKEN = [c_char_p, c_uint64, _HANDLE]
# Functions that return a status.
_FALLIBLE: dict[str, list[Any]] = {
    "redlock_new": [POINTER(c_char_p), c_size_t, _HANDLE],
    "redlock_set": [c_void_p, c_int, c_uint64],
    "redlock_set_tls": [c_void_p, *_BYTES, *_BYTES, *_BYTES, c_char_p],
    "redlock_set_label": [c_void_p, c_char_p],
    "redlock_set_prefix": [c_void_p, c_char_p],
    "redlock_set_observer": [c_void_p, ON_EVENT, c_void_p],
    "redlock_set_log": [c_int, ON_LOG, c_void_p],
    "redlock_check": [c_void_p, *_BYTES, c_char_p, c_size_t, POINTER(c_int)],
    "redlock_inspect": [c_void_p, *_BYTES, c_char_p, c_size_t, POINTER(c_uint64), POINTER(c_int)],
    "redlock_check_json": [c_void_p, *_BYTES, *_DOCUMENT],
    "redlock_inspect_json": [c_void_p, *_BYTES, *_DOCUMENT],
    "redlock_inspect_last_run": [c_void_p, *_BYTES, c_char_p, c_size_t, *[POINTER(c_uint64)] * 3],
    "redlock_break_lock": [c_void_p, *_BYTES, c_char_p, POINTER(c_int)],
    "redlock_connect": [c_void_p],
    "redlock_acquire_within": [c_void_p, *_BYTES, *_TIMES],
    "redlock_acquire_permit": [c_void_p, *_BYTES, c_uint32, *_TIMES],
    "redlock_acquire_read": [c_void_p, *_BYTES, *_TIMES],
    "redlock_acquire_write": [c_void_p, *_BYTES, *_TIMES],
    "redlock_acquire_several": [c_void_p, *_NAMES, *_TIMES],
    "redlock_resume": [c_void_p, *_BYTES, *_TOKEN],
    "redlock_resume_permit": [c_void_p, *_BYTES, c_uint32, *_TOKEN],
    "redlock_resume_read": [c_void_p, *_BYTES, *_TOKEN],
    "redlock_resume_write": [c_void_p, *_BYTES, *_TOKEN],
    "redlock_resume_several": [c_void_p, *_NAMES, *_TOKEN],
    "redlock_lock_ensure": [c_void_p, c_uint64],
    "redlock_lock_extend": [c_void_p, c_uint64],
    "redlock_lock_fencing_token": [c_void_p, POINTER(c_uint64)],
    "redlock_lock_mark_done": [c_void_p, c_uint64, c_uint64],
    "redlock_lock_keep_alive": [c_void_p, c_uint64],
    "redlock_lock_stop": [c_void_p],
    "redlock_lock_on_lost": [c_void_p, ON_LOST, c_void_p],
    "redlock_lock_on_expiring": [c_void_p, c_uint64, ON_EXPIRING, c_void_p],
    "redlock_lock_wait_lost": [c_void_p, c_uint64],
    "redlock_lock_release": [c_void_p],
    "redlock_lock_leak": [c_void_p],
    "redlock_lock_leak_for": [c_void_p, c_uint64],
}
# The others.
_OTHERS: dict[str, tuple[list[Any], Any]] = {
    "redlock_free": ([c_void_p], None),
    "redlock_set_keep_trying": ([KEEP_TRYING, c_void_p], None),
    "redlock_last_error": ([c_char_p, c_size_t], c_size_t),
    "redlock_last_cause": ([c_size_t, c_char_p, c_size_t], c_size_t),
    "redlock_last_label": ([c_char_p, c_size_t], c_size_t),
    "redlock_last_remaining_ms": ([], c_uint64),
    "redlock_last_is_own": ([], c_int),
    "redlock_last_is_permanent": ([], c_int),
    "redlock_last_lost_reason": ([], c_int),
    "redlock_last_retry_after_ms": ([], c_uint64),
    "redlock_lock_is_valid": ([c_void_p], c_int),
    "redlock_lock_remaining_ms": ([c_void_p], c_uint64),
    "redlock_lock_hold_left_ms": ([c_void_p], c_uint64),
    "redlock_lock_since_renewal_ms": ([c_void_p], c_uint64),
    "redlock_lock_extensions_left": ([c_void_p], c_uint32),
    "redlock_lock_lost_reason": ([c_void_p], c_int),
    "redlock_lock_slot": ([c_void_p], c_int64),
    "redlock_lock_token": ([c_void_p, c_char_p, c_size_t], c_size_t),
}


def find(path: str | None) -> str:
    """The library that was given, or the one of the wheel, or the system's."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    return path or (beside if os.path.exists(beside) else NAME)


@functools.lru_cache(maxsize=None)
def load(path: str) -> Any:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        advice = "install the wheel or redlock-sync's C library, or give the path of libredlock_sync.so as `library`"
        raise OSError(f"{error} ({advice})") from None

    def text(function: Callable[..., int], *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(4000)
        function(*arguments, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def check(status: int, _function: Any, _arguments: Any) -> None:
        if status == 0:
            return
        what = text(library.redlock_last_error).replace("lock is NULL", "this lock was released or left before")
        error = ERRORS.get(status, Error)(what)
        if isinstance(error, Unavailable):
            error.permanent = bool(library.redlock_last_is_permanent())
            error.retry_after = library.redlock_last_retry_after_ms() / 1000
            error.causes = tuple(iter(map(functools.partial(text, library.redlock_last_cause), range(64)).__next__, ""))
        elif isinstance(error, Lost):
            error.reason = REASONS.get(library.redlock_last_lost_reason(), "over")
        elif isinstance(error, Busy):
            error.label = text(library.redlock_last_label) or None
            error.remaining = library.redlock_last_remaining_ms() / 1000 or None
            error.is_own = bool(library.redlock_last_is_own())
        try:
            raise error
        finally:
            # In a cycle with its traceback it would keep alive what its callers have, also locks.
            del error

    # Without these, ctypes would cut pointers to 32 bits.
    for name, arguments in _FALLIBLE.items():
        function = getattr(library, name)
        function.argtypes, function.errcheck = arguments, check
    for name, (arguments, result) in _OTHERS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


# A thread, with its process: in a forked child there is none of its parent's.
Thread = Tuple[int, int]


def this_thread() -> Thread:
    return os.getpid(), threading.get_ident()


def noting(threads: list[Thread], function: Callable[..., object]) -> Callable[..., None]:
    """The function, for a callback: while it runs, its thread is one of `threads`."""
    def call(*arguments: Any) -> None:
        thread = this_thread()
        threads.append(thread)
        try:
            function(*arguments)
        finally:
            threads.remove(thread)

    return call


class _Function:
    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function


def weakly(kept: list[Any], function: Callable[..., object]) -> Callable[..., None]:
    """The function, for a callback that may outlive its object: it is called as long as `kept`, a list of that object, is there.
    (The callback must not refer to the function, which often refers to the object, and would keep it.)"""
    kept.append(_Function(function))
    found = weakref.ref(kept[-1])

    def call(*arguments: Any) -> None:
        still = found()
        if still is not None:
            still.function(*arguments)

    return call


def ms(seconds: float, rounded: Callable[[float], int] = round) -> int:
    if not seconds >= 0:
        raise Config(f"a time of {seconds} s: it must be a number that is not negative")
    return FOREVER if seconds >= FOREVER / 1000 else min(rounded(seconds * 1000), FOREVER)


def whole(what: str, number: int, bits: int) -> int:
    """A number for C, which ctypes would cut to so many bits."""
    number = operator.index(number)
    if not 0 <= number < 2**bits:
        raise Config(f"{what} is {number}: it is out of range")
    return number


def utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Config(f"{what} is no text in UTF-8") from None


def name_bytes(name: str | bytes) -> tuple[bytes, int]:
    # memoryview() refuses a number, of which bytes() would make so many zeros.
    name = utf8("the name (os.fsencode makes bytes of one)", name) if isinstance(name, str) else bytes(memoryview(name))
    return name, len(name)


def text_bytes(what: str, text: str) -> bytes:
    """A text without a length: C would take it to its first NUL."""
    encoded = utf8(what, text)
    if b"\0" in encoded:
        raise Config(f"{what} has a NUL character in it")
    return encoded
