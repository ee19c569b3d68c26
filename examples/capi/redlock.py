"""Locks on Redis, from redlock-sync's C library, with nothing but ctypes. A module to copy.

    from redlock import Busy, Redlock

    locks = Redlock(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])  # one for the whole program
    with locks.lock("shop:account:17", ttl=10) as lock:  # waits for up to 10 s, then raises Busy
        lock.ensure(1)  # before a write that takes up to a second: raises Lost or TooSlow
        lock.extend(10)

Times are in seconds. All that fails raises an Error. A lock is valid until it is released or its ttl is over,
whichever comes first: the header redlock.h says what that means. A Redlock and a Lock can be used by all threads. A
call that waits holds up no other thread of Python, and is not interrupted by Ctrl-C: give it a short `wait`.
"""

import ctypes
import functools
import json
import math
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p


class Error(Exception):
    """What failed. Its text is that of `redlock_last_error`."""


class Busy(Error):
    """Another holder had the lock for the whole wait."""


class Lost(Error):
    """The lock is no longer held: stop what it protects."""


class TooSlow(Error):
    """Too little of the validity is left."""


class Unavailable(Error):
    """Too few nodes answered. `permanent`: they refuse for good, and trying again is of no use. `retry_after`: how long
    it takes until enough nodes vote again after restarts, or 0."""

    permanent = False
    retry_after = 0.0


class ExtensionLimit(Error):
    """No more extensions: the lock is valid until its deadline."""


class Config(Error, ValueError):
    """A value that cannot work."""


ERRORS = {1: Busy, 2: Lost, 3: TooSlow, 4: Unavailable, 5: ExtensionLimit, 7: Config}
OPTIONS = ["wait", "retry_delay_min", "retry_delay_max", "node_timeout", "connect_timeout", "max_extensions",
           "restart_guard", "fair"]  # the numbers from 1 on
TEXTS = {"label": "redlock_set_label", "prefix": "redlock_set_prefix"}
REASONS = {1: "taken", 2: "expired", 3: "hold limit"}

EVENTS = {1: "acquired", 2: "not acquired", 3: "extended", 4: "not extended", 5: "lost", 6: "ended", 7: "node away",
          8: "node back"}
STATES = {0: "free", 1: "held", 2: "blocked", 3: "unknown", 4: "readers", 5: "permits"}

_HANDLE = POINTER(c_void_p)


class _Event(ctypes.Structure):
    _fields_ = [("kind", c_int), ("why", c_int), ("resource", c_void_p), ("resource_len", c_size_t), ("time_us", c_uint64),
                ("attempts", ctypes.c_uint32), ("renewal", c_int), ("node", c_size_t), ("address", c_char_p),
                ("text", c_char_p)]


_OBSERVER = ctypes.CFUNCTYPE(None, POINTER(_Event), c_void_p)
_observers = []  # the library may call them until the process ends
# Those that return a status.
_FALLIBLE = {
    "redlock_new": [POINTER(c_char_p), c_size_t, _HANDLE],
    "redlock_set": [c_void_p, c_int, c_uint64],
    "redlock_set_label": [c_void_p, c_char_p],
    "redlock_set_prefix": [c_void_p, c_char_p],
    "redlock_set_observer": [c_void_p, _OBSERVER, c_void_p],
    "redlock_check": [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_int)],
    "redlock_inspect": [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_uint64), POINTER(c_int)],
    "redlock_check_json": [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_size_t)],
    "redlock_inspect_json": [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_size_t)],
    "redlock_connect": [c_void_p],
    "redlock_acquire": [c_void_p, c_char_p, c_size_t, c_uint64, _HANDLE],
    "redlock_acquire_within": [c_void_p, c_char_p, c_size_t, c_uint64, c_uint64, _HANDLE],
    "redlock_acquire_permit": [c_void_p, c_char_p, c_size_t, c_uint32, c_uint64, c_uint64, _HANDLE],
    "redlock_acquire_read": [c_void_p, c_char_p, c_size_t, c_uint64, c_uint64, _HANDLE],
    "redlock_acquire_write": [c_void_p, c_char_p, c_size_t, c_uint64, c_uint64, _HANDLE],
    "redlock_acquire_several": [c_void_p, POINTER(c_char_p), POINTER(c_size_t), c_size_t, c_uint64, c_uint64, _HANDLE],
    "redlock_lock_ensure": [c_void_p, c_uint64],
    "redlock_lock_extend": [c_void_p, c_uint64],
    "redlock_lock_fencing_token": [c_void_p, POINTER(c_uint64)],
    "redlock_lock_keep_alive": [c_void_p, c_uint64],
    "redlock_lock_wait_lost": [c_void_p, c_uint64],
    "redlock_lock_release": [c_void_p],
    "redlock_lock_leak_for": [c_void_p, c_uint64],
}
# The others.
_OTHERS = {
    "redlock_free": ([c_void_p], None),
    "redlock_last_error": ([c_char_p, c_size_t], c_size_t),
    "redlock_last_is_permanent": ([], c_int),
    "redlock_last_retry_after_ms": ([], c_uint64),
    "redlock_lock_is_valid": ([c_void_p], c_int),
    "redlock_lock_remaining_ms": ([c_void_p], c_uint64),
    "redlock_lock_lost_reason": ([c_void_p], c_int),
    "redlock_lock_slot": ([c_void_p], c_int64),
    "redlock_lock_leak": ([c_void_p], None),
}


@functools.cache
def _load(path):
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        advice = "install redlock-sync's C library, or give the path of libredlock_sync.so as `library`"
        raise OSError(f"{error} ({advice})") from None

    def check(status, _function, _arguments):
        if status == 0:
            return
        text = ctypes.create_string_buffer(2000)
        library.redlock_last_error(text, len(text))
        text = text.value.decode(errors="replace").replace("lock is NULL", "this lock was released or left before")
        error = ERRORS.get(status, Error)(text)
        if isinstance(error, Unavailable):
            error.permanent = bool(library.redlock_last_is_permanent())
            error.retry_after = library.redlock_last_retry_after_ms() / 1000
        raise error

    # Without these, ctypes would cut pointers to 32 bits.
    for name, arguments in _FALLIBLE.items():
        function = getattr(library, name)
        function.argtypes, function.errcheck = arguments, check
    for name, (arguments, result) in _OTHERS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def _ms(seconds):
    if seconds < 0:
        raise Config(f"a time of {seconds} s: it cannot be negative")
    return 2**64 - 1 if math.isinf(seconds) else min(round(seconds * 1000), 2**64 - 1)


def _in_python(text):
    """Advice on an option, with its name here."""
    return text.replace("REDLOCK_OPTION_RESTART_GUARD_MS", "restart_guard")


def _bytes(name):
    name = name.encode() if isinstance(name, str) else name
    return name, len(name)


class Lock:
    """A lock that is held. Released at the end of a `with`, and at the latest when nothing refers to it any more. One
    lock is for one `with`: a second one raises an Error before its first line, and so does one on a lock that is over."""

    def __init__(self, library, handle):
        self._library, self._handle, self._entered = library, handle, False

    def ensure(self, at_least):
        """Call it before a write that takes up to this long. Lost: it is over; TooSlow: less is left."""
        self._library.redlock_lock_ensure(self._handle, _ms(at_least))

    def extend(self, ttl):
        """Makes it valid for a ttl from now."""
        self._library.redlock_lock_extend(self._handle, _ms(ttl))

    def keep_alive(self, max_hold):
        """Renews it automatically, until this long after its acquisition."""
        self._library.redlock_lock_keep_alive(self._handle, _ms(max_hold))

    def fencing_token(self):
        """A number that grows from holder to holder, for a store that refuses smaller ones."""
        number = c_uint64()
        self._library.redlock_lock_fencing_token(self._handle, byref(number))
        return number.value

    @property
    def remaining(self):
        return self._library.redlock_lock_remaining_ms(self._handle) / 1000

    @property
    def lost(self):
        """None while it is valid; otherwise why it was lost, as far as that is known."""
        if self._library.redlock_lock_is_valid(self._handle):
            return None
        return REASONS.get(self._library.redlock_lock_lost_reason(self._handle), "over")

    @property
    def slot(self):
        """Which of the permits of a semaphore it is, from 0 on; None for other locks."""
        slot = self._library.redlock_lock_slot(self._handle)
        return None if slot < 0 else slot

    def wait_lost(self, timeout):
        """Waits until a lock that is kept alive is lost, then raises Lost. Returns if it is still held after `timeout`."""
        self._library.redlock_lock_wait_lost(self._handle, _ms(timeout))

    def release(self):
        # The library frees the handle in any case, so it is forgotten first.
        handle, self._handle = self._handle, None
        self._library.redlock_lock_release(handle)

    def leak(self):
        """Leaves it to its ttl: a throttle."""
        handle, self._handle = self._handle, None
        self._library.redlock_lock_leak(handle)

    def leak_for(self, seconds):
        """Leaves it taken for so long from now, or to its ttl if that is sooner: for work that must not be done again too
        soon, but may take longer than that."""
        handle, self._handle = self._handle, None
        self._library.redlock_lock_leak_for(handle, _ms(seconds))

    def __enter__(self):
        # The end of a `with` releases the lock: a second one, behind it or inside it, would protect nothing.
        if self._entered:
            raise Config("this lock was in a `with` before, which releases it at its end: take another one for this `with`")
        self._entered = True  # before anything that lets another thread run
        try:
            self.ensure(0)
        except BaseException:
            self._entered = False
            raise
        return self

    def __exit__(self, kind, *_):
        if self._handle is None:
            return
        try:
            self.release()
        except Lost:
            if kind is None:
                raise  # the work was not protected to its end
        except Unavailable:
            pass  # the ttl ends it

    def __del__(self):
        try:
            if self._handle is not None:
                self.release()
        except Error:
            pass


class Redlock:
    """The nodes: one, or 3 or 5 independent ones. Make one for the whole program, for all its threads.

    `library`: the path of libredlock_sync.so, where the system does not find it by its name.
    `options` are those of `redlock_set`, `redlock_set_label` and `redlock_set_prefix`: wait=30, node_timeout=0.5,
    fair=True, label="web-3:4711", prefix="team:", and so on."""

    _handle = None

    def __init__(self, urls, library="libredlock_sync.so", **options):
        self._library = _load(library)
        handle = c_void_p()
        urls = [urls] if isinstance(urls, str) else list(urls)
        array = (c_char_p * len(urls))(*[url.encode() for url in urls])
        self._library.redlock_new(array, len(urls), byref(handle))
        self._handle = handle
        self._wait = options.get("wait", 10)
        for name, value in options.items():
            if name in TEXTS:
                getattr(self._library, TEXTS[name])(handle, value.encode())
                continue
            if name not in OPTIONS:
                raise Config(f"no option {name}: there are {', '.join([*OPTIONS, *TEXTS])}")
            number = int(value) if name in ("max_extensions", "fair") else _ms(value)
            self._library.redlock_set(handle, OPTIONS.index(name) + 1, number)

    def observe(self, function):
        """Calls function(kind, name, seconds, why) at each event, as redlock.h says it of redlock_set_observer: kind is one
        of EVENTS, name that of the lock or the address of the node. Call it before the first lock."""

        def call(event, _user):
            event = event.contents
            named = ctypes.string_at(event.resource, event.resource_len) if event.resource else event.address
            function(EVENTS.get(event.kind), named.decode(errors="replace"), event.time_us / 1e6, event.why)

        _observers.append(_OBSERVER(call))
        self._library.redlock_set_observer(self._handle, _observers[-1], None)

    def check(self, probe):
        """Whether the nodes are fit for locks, and what is wrong, one finding in a line. `probe`: a lock that is tried."""
        text, fit = ctypes.create_string_buffer(65536), c_int()
        self._library.redlock_check(self._handle, *_bytes(probe), text, len(text), byref(fit))
        return bool(fit.value), _in_python(text.value.decode(errors="replace"))

    def inspect(self, name):
        """Who has a lock: one of STATES, the holder, and for how many seconds (math.inf: without an end). For people."""
        holder, left, state = ctypes.create_string_buffer(1000), c_uint64(), c_int()
        self._library.redlock_inspect(
            self._handle, *_bytes(name), holder, len(holder), byref(left), byref(state))
        seconds = math.inf if left.value == 2**64 - 1 else left.value / 1000
        return STATES.get(state.value), holder.value.decode(errors="replace"), seconds

    def check_json(self, probe):
        """The report of `redlock doctor --json`, as a dict."""
        return self._document(self._library.redlock_check_json, probe)

    def inspect_json(self, name):
        """What `redlock inspect --json` prints, as a dict: all holders, node by node."""
        return self._document(self._library.redlock_inspect_json, name)

    def _document(self, ask, name):
        text, needed = ctypes.create_string_buffer(65536), c_size_t()
        while True:
            try:
                ask(self._handle, *_bytes(name), text, len(text), byref(needed))
                return json.loads(_in_python(text.value.decode()))
            except Config:
                if needed.value <= len(text):
                    raise
                text = ctypes.create_string_buffer(2 * needed.value)

    def connect(self):
        """Connects now, and raises Unavailable if no majority answers: for a program that should fail at its start."""
        self._library.redlock_connect(self._handle)

    def lock(self, name, ttl, wait=None):
        """Takes the lock `name`. Waits while others hold it: for the option `wait` (10 s), or for `wait` seconds."""
        handle = c_void_p()
        if wait is None:
            self._library.redlock_acquire(self._handle, *_bytes(name), _ms(ttl), byref(handle))
        else:
            self._library.redlock_acquire_within(self._handle, *_bytes(name), _ms(ttl), _ms(wait), byref(handle))
        return Lock(self._library, handle)

    def permit(self, name, permits, ttl, wait=None):
        """One of so many permits of the semaphore `name`. Its `slot` tells which."""
        return self._other("permit", [*_bytes(name), permits], ttl, wait)

    def read_lock(self, name, ttl, wait=None):
        """A lock beside which others may read."""
        return self._other("read", _bytes(name), ttl, wait)

    def write_lock(self, name, ttl, wait=None):
        """A lock beside which none may read or write."""
        return self._other("write", _bytes(name), ttl, wait)

    def several(self, names, ttl, wait=None):
        """One lock on all of these names, or on none of them."""
        names = [names] if isinstance(names, (str, bytes)) else names
        names, lengths = zip(*map(_bytes, names)) if names else ((), ())
        arrays = (c_char_p * len(names))(*names), (c_size_t * len(names))(*lengths)
        return self._other("several", [*arrays, len(names)], ttl, wait)

    def _other(self, kind, what, ttl, wait):
        handle = c_void_p()
        wait = self._wait if wait is None else wait
        getattr(self._library, f"redlock_acquire_{kind}")(self._handle, *what, _ms(ttl), _ms(wait), byref(handle))
        return Lock(self._library, handle)

    def try_lock(self, name, ttl):
        """One attempt. None: another holder has it."""
        try:
            return self.lock(name, ttl, wait=0)
        except Busy:
            return None

    def __del__(self):
        if self._handle is not None:
            self._library.redlock_free(self._handle)
