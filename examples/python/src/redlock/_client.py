"""The nodes, and all ways to a lock."""

from __future__ import annotations

import json
import math
import weakref
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Sequence

from . import _waiting
from ._library import ON_EVENT, TOKEN_SIZE, find, load, ms, name_bytes, text_bytes, weakly, whole
from ._lock import Lock
from ._report import Event, observer
from .errors import Busy, Config, Unavailable

# For a text or a document, at first.
_ROOM = 65536
# In the words of the JSON: the state, and the kind.
_STATES = {0: ("free", None), 1: ("held", "lock"), 2: ("blocked", None), 3: ("unknown", None), 4: ("held", "readers"),
           5: ("held", "permits")}


@dataclass(frozen=True)
class Inspection:
    """Who has a lock."""

    state: str
    """"free", "held", "blocked" (by something else), or "unknown"."""
    kind: str | None
    """"lock", "readers" or "permits" if it is held."""
    holder: str
    """A fingerprint of the token, and the label; empty if there is none. Of readers and permits, a line for each."""
    remaining: float
    """How many seconds that lasts, if nothing else happens; math.inf is without an end."""


@dataclass(frozen=True)
class Report:
    """Whether the nodes are fit for locks."""

    fit: bool
    findings: str
    """What is wrong, one finding in a line."""


@dataclass(frozen=True)
class LastRun:
    """Work that was done within its period."""

    ended: float
    """When, in seconds since 1970, as time.time() has them."""
    took: float
    label: str
    """The label of the process that has done it; empty if it has none."""
    again_in: float
    """In how many seconds the period is over, and the work may be done again."""


class Redlock:
    """The nodes: one, or 3 or 5 independent ones. Make one for the whole program, for all its threads.

    `urls`: one URL or several. One text may have several, with commas or white space between them, as a variable has them.
    `library`: the path of libredlock_sync.so, if neither the wheel nor the system has it.
    TLS, for rediss://: `ca` (the certificates of the CAs that are trusted, instead of the system's), `certificate` and `key`
    (which this program shows), each in PEM, and `server_name` (which all certificates must be for).
    The others are the options that redlock.h describes at `redlock_set`, `redlock_set_label` and `redlock_set_prefix`, which has
    the defaults of those that are None."""

    _handle: c_void_p | None = None

    def __init__(self, urls: str | Iterable[str], library: str | None = None, *, wait: float | None = 10,
                 retry_delay_min: float | None = None, retry_delay_max: float | None = None, node_timeout: float | None = None,
                 connect_timeout: float | None = None, max_extensions: int | None = None, restart_guard: float | None = None,
                 fair: bool = False, label: str = "", prefix: str = "", ca: str | bytes | None = None,
                 certificate: str | bytes | None = None, key: str | bytes | None = None, server_name: str | None = None) -> None:
        if library is not None and "://" in library:
            raise TypeError("library is the path of libredlock_sync.so: give several nodes as one list, Redlock([node, node])")
        self._library = load(find(library))
        handle = c_void_p()
        urls = [urls] if isinstance(urls, str) else list(urls)
        array = (c_char_p * len(urls))(*[text_bytes(f"node {at}", url) for at, url in enumerate(urls)])
        self._library.redlock_new(array, len(urls), byref(handle))
        self._handle = handle
        self._wait = wait = 10 if wait is None else wait
        self._functions: list[Any] = []
        self._observers: list[Any] = []
        times = {1: wait, 2: retry_delay_min, 3: retry_delay_max, 4: node_timeout, 5: connect_timeout, 7: restart_guard}
        numbers = {option: ms(time) for option, time in times.items() if time is not None}
        if max_extensions is not None:
            numbers[6] = whole("max_extensions", max_extensions, 64)
        for option, number in {**numbers, 8: int(fair)}.items():
            self._library.redlock_set(handle, option, number)
        self._library.redlock_set_label(handle, text_bytes("the label", label))
        self._library.redlock_set_prefix(handle, text_bytes("the prefix", prefix))
        if not ca is certificate is key is server_name is None:
            parts = [(None, 0) if part is None else name_bytes(part) for part in (ca, certificate, key)]
            of_all = text_bytes("the server_name", server_name) if server_name is not None else None
            self._library.redlock_set_tls(handle, *parts[0], *parts[1], *parts[2], of_all)

    # ---- locks ----

    def lock(self, name: str | bytes, ttl: float, wait: float | None = None) -> Lock:
        """Takes the lock `name`. Waits while others hold it: for the option `wait` (10 s), or for `wait` seconds."""
        return self._acquire("within", name, name_bytes(name), ttl, wait)

    def try_lock(self, name: str | bytes, ttl: float) -> Lock | None:
        """One attempt. None: another holder has it."""
        try:
            return self.lock(name, ttl, wait=0)
        except Busy:
            return None

    def semaphore(self, name: str | bytes, permits: int, ttl: float, wait: float | None = None) -> Lock:
        """One of so many permits of the semaphore `name`. Its `slot` tells which."""
        return self._acquire("permit", name, (*name_bytes(name), whole("permits", permits, 32)), ttl, wait)

    def read_lock(self, name: str | bytes, ttl: float, wait: float | None = None) -> Lock:
        """A lock beside which others may read."""
        return self._acquire("read", name, name_bytes(name), ttl, wait)

    def write_lock(self, name: str | bytes, ttl: float, wait: float | None = None) -> Lock:
        """A lock beside which none may read or write."""
        return self._acquire("write", name, name_bytes(name), ttl, wait)

    def several(self, names: str | bytes | Sequence[str | bytes], ttl: float, wait: float | None = None) -> Lock:
        """One lock on all of these names, or on none of them."""
        return self._acquire("several", *_several(names), ttl, wait)

    def _acquire(self, kind: str, name: str | bytes, what: tuple[Any, ...], ttl: float, wait: float | None) -> Lock:
        # It is there before its handle: an exception behind the call releases it.
        lock = Lock(self, self._library, name)
        arguments = (self._handle, *what, ms(ttl), ms(self._wait if wait is None else wait), byref(lock._handle))
        _waiting.acquire(self._library, getattr(self._library, f"redlock_acquire_{kind}"), arguments, lock)
        return lock

    # ---- locks from another process ----

    def resume(self, name: str | bytes, token: bytes, validity: float) -> Lock:
        """Takes over a lock that another process or thread hands over: with its `token`, and its `remaining` there, less the
        time that the hand-over took. No node is asked. The giver calls `leak`."""
        return self._resume("", name, name_bytes(name), token, validity)

    def resume_semaphore(self, name: str | bytes, permits: int, token: bytes, validity: float) -> Lock:
        return self._resume("_permit", name, (*name_bytes(name), whole("permits", permits, 32)), token, validity)

    def resume_read_lock(self, name: str | bytes, token: bytes, validity: float) -> Lock:
        return self._resume("_read", name, name_bytes(name), token, validity)

    def resume_write_lock(self, name: str | bytes, token: bytes, validity: float) -> Lock:
        return self._resume("_write", name, name_bytes(name), token, validity)

    def resume_several(self, names: str | bytes | Sequence[str | bytes], token: bytes, validity: float) -> Lock:
        return self._resume("_several", *_several(names), token, validity)

    def _resume(self, kind: str, name: str | bytes, what: tuple[Any, ...], token: bytes, validity: float) -> Lock:
        if len(token) != TOKEN_SIZE:
            raise Config(f"a token of {len(token)} bytes: it has {TOKEN_SIZE}")
        lock = Lock(self, self._library, name)
        resume = getattr(self._library, f"redlock_resume{kind}")
        resume(self._handle, *what, token, ms(validity, math.floor), byref(lock._handle))
        return lock

    # ---- the nodes ----

    def connect(self) -> None:
        """Connects now, and raises Unavailable if no majority answers: for a program that should fail at its start."""
        self._ask(self._library.redlock_connect)

    def observe(self, function: Callable[[Event], object]) -> None:
        """Calls function(event) at each Event, in the thread that it concerns. Call it before the first lock. The function must not
        end, ask or change the lock that the event is about: inside a call with it that is Config, or as if it were lost."""
        callback = observer(weakly(self._functions, function))
        self._observers.append(callback)
        # An exception of a signal handler in `__del__` can leave the library's part behind.
        _observers[id(self._observers)] = self._observers
        with _waiting.ending.registering():
            _observed.add(self)
            self._library.redlock_set_observer(self._handle, callback, None)

    def check(self, probe: str | bytes) -> Report:
        """Whether the nodes are fit for locks, and what is wrong. `probe`: a lock that is tried."""
        fit = c_int()
        text = self._text(self._library.redlock_check, probe, byref(fit))
        return Report(bool(fit.value), _in_python(text))

    def check_json(self, probe: str | bytes) -> Any:
        """The report of `redlock doctor --json`, as a dict."""
        return self._document(self._library.redlock_check_json, probe)

    def inspect(self, name: str | bytes) -> Inspection:
        """Who has a lock, for people."""
        left, state = c_uint64(), c_int()
        holder = self._text(self._library.redlock_inspect, name, byref(left), byref(state))
        seconds = math.inf if left.value == 2**64 - 1 else left.value / 1000
        return Inspection(*_STATES.get(state.value, ("unknown", None)), holder, seconds)

    def inspect_json(self, name: str | bytes) -> Any:
        """The document of `redlock inspect --json`, as a dict: all holders, node by node, and the processes that wait."""
        return self._document(self._library.redlock_inspect_json, name)

    def locked(self, name: str | bytes) -> bool:
        """Whether the lock is taken at this moment, for people: to take it, call try_lock. Unavailable: too few nodes answered;
        `inspect_json` has the cause at each."""
        state = self.inspect(name).state
        if state == "unknown":
            raise Unavailable(f"whether the lock {name!r} is taken is unclear: too few nodes answered")
        return state != "free"

    def last_run(self, name: str | bytes) -> LastRun | None:
        """The run that `Lock.mark_done` or `redlock run --once-per` has marked as done, if its period is not over. For work that
        is done once in a period, ask while the lock is held, before the work."""
        label, times = create_string_buffer(1024), (c_uint64(), c_uint64(), c_uint64())
        self._ask(self._library.redlock_inspect_last_run, *name_bytes(name), label, len(label), *map(byref, times))
        ended, took, again_in = [time.value / 1000 for time in times]
        return LastRun(ended, took, label.value.decode(errors="replace"), again_in) if ended else None

    def break_lock(self, name: str | bytes, holder: str) -> bool:
        """Releases the lock of a holder that will not come back: the text from `inspect`; of several readers or permits one line
        of it. It gives up mutual exclusion: redlock.h explains how. False: this holder no longer has it. Config: the text names
        no holder, as a label alone does, or several."""
        broken = c_int()
        self._ask(self._library.redlock_break_lock, *name_bytes(name), text_bytes("the holder", holder), byref(broken))
        return bool(broken.value)

    def _ask(self, function: Callable[..., None], *arguments: Any) -> None:
        _waiting.ask(self._library, function, self._handle, *arguments)

    def _text(self, ask: Callable[..., None], name: str | bytes, *outputs: Any) -> str:
        text = create_string_buffer(_ROOM)
        self._ask(ask, *name_bytes(name), text, len(text), *outputs)
        return text.value.decode(errors="replace")

    def _document(self, ask: Callable[..., None], name: str | bytes) -> Any:
        text, needed = create_string_buffer(_ROOM), c_size_t()
        while True:
            try:
                self._ask(ask, *name_bytes(name), text, len(text), byref(needed))
                return json.loads(_in_python(text.value.decode()))
            except Config:
                if needed.value <= len(text):
                    raise
                text = create_string_buffer(2 * needed.value)

    def _silence(self) -> None:
        """No event is reported from now on. (In a forked child none was, and this is refused.)"""
        try:
            if self._observers:
                self._library.redlock_set_observer(self._handle, ON_EVENT(), None)
        except Config:
            pass

    def __reduce__(self) -> Any:
        raise TypeError("a Redlock cannot be copied or pickled: all threads use the same one, and another process makes its own")

    def __del__(self) -> None:
        if self._handle is not None:
            self._silence()
            self._library.redlock_free(self._handle)
            _observers.pop(id(self._observers), None)


# Those that the library may call, by their list.
_observers: dict[int, list[Any]] = {}
# Their events must not reach an interpreter that is gone.
_observed: weakref.WeakSet[Redlock] = weakref.WeakSet()


def _silence_all() -> None:
    for locks in list(_observed):
        locks._silence()


_waiting.ending.last.append(_silence_all)


def _several(names: str | bytes | Sequence[str | bytes]) -> tuple[str | bytes, tuple[Any, ...]]:
    names = [names] if isinstance(names, (str, bytes)) else list(names)
    texts = [name_bytes(name) for name in names]
    arrays = (c_char_p * len(texts))(*[text for text, _ in texts]), (c_size_t * len(texts))(*[size for _, size in texts])
    return names[0] if names else "", (*arrays, len(texts))


def _in_python(text: str) -> str:
    """Advice on an option, with its name here."""
    return text.replace("REDLOCK_OPTION_RESTART_GUARD_MS", "restart_guard")
