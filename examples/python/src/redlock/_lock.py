"""A lock that is held."""

from __future__ import annotations

import math
import os
import threading
import time
import warnings
from ctypes import byref, c_uint64, c_void_p, create_string_buffer
from types import TracebackType
from typing import Any, Callable

from ._library import ON_EXPIRING, ON_LOST, REASONS, TOKEN_SIZE, Thread, ms, noting, this_thread, weakly
from ._report import reporting
from ._waiting import ending
from .errors import Config, Error, Lost, Unavailable

# So long a call of this module may keep a signal handler from running, and another thread from ending the lock.
SLICE = 0.05


class Lock:
    """A lock that is held. It is released at the end of a `with`. One lock is for one `with`: a second one raises an Error
    before its first line, and so does one on a lock that is over.

    A lock that nothing refers to any more is released, too, with a ResourceWarning: work that relied on it may go on."""

    # For the `__del__` of one that a signal handler interrupts at its beginning.
    _handle = c_void_p()
    _called_back_in: list[Thread] = []

    def __init__(self, client: Any, library: Any, name: str | bytes) -> None:
        # The client object reports the events of its locks, so it lives as long as they do.
        self._client, self._library, self._name = client, library, name
        self._handle = c_void_p()
        self._process, self._entered = os.getpid(), False
        # The threads whose calls use the handle: until they are over it must not be freed.
        self._calls: list[Thread] = []
        self._functions: list[Any] = []
        self._callbacks: list[Any] = []
        # The threads that are in a function for this lock's loss or expiry: its end waits for them.
        self._called_back_in: list[Thread] = []
        # The call that ends the lock, by its copy of the handle.
        self._ender: dict[str, c_void_p] = {}

    @property
    def name(self) -> str | bytes:
        """The name of the lock; of several names the first one that was given."""
        return self._name

    @property
    def token(self) -> bytes:
        """A secret that identifies this acquisition, for `Redlock.resume` in another process. Never log it."""
        self._held()
        buffer = create_string_buffer(TOKEN_SIZE)
        self._call("token", buffer, TOKEN_SIZE)
        return buffer.raw

    @property
    def remaining(self) -> float:
        """For how many seconds it is still valid, by the local clock."""
        return float(self._call("remaining_ms")) / 1000

    @property
    def hold_left(self) -> float:
        """For how many seconds it will still be renewed. 0: it is not kept alive."""
        return float(self._call("hold_left_ms")) / 1000

    @property
    def since_renewal(self) -> float:
        """How many seconds ago the last renewal that succeeded began: for a health check. Below half of the ttl with nodes that
        answer. 0: it is not kept alive."""
        return float(self._call("since_renewal_ms")) / 1000

    @property
    def extensions_left(self) -> int:
        """How often `extend` can still succeed. 0 for a lock that is kept alive."""
        return int(self._call("extensions_left"))

    @property
    def lost(self) -> str | None:
        """None while it is valid; otherwise why it was lost, as far as that is known."""
        if self._call("is_valid"):
            return None
        return REASONS.get(self._call("lost_reason"), "over")

    @property
    def slot(self) -> int | None:
        """Which of the permits of a semaphore it is, from 0 on; None for other locks."""
        slot = self._call("slot")
        return None if slot < 0 else slot

    def owned(self) -> bool:
        """Whether it is still valid, by the local clock: no node is asked."""
        return self.lost is None

    def __bool__(self) -> bool:
        """As `owned`: `if lock:` is no longer true once it is lost."""
        return self.owned()

    def ensure(self, at_least: float) -> None:
        """Call it before a write that takes up to this long; of a lock that is kept alive, half of the ttl at most. Lost: it is
        over; TooSlow: less is left, so do not write either."""
        self._call("ensure", ms(at_least, math.ceil))

    def extend(self, ttl: float) -> None:
        """Makes it valid for a ttl from now, if it would end earlier."""
        self._call("extend", ms(ttl))

    def fencing_token(self) -> int:
        """A number that grows from holder to holder, for a store that refuses smaller ones."""
        number = c_uint64()
        self._call("fencing_token", byref(number))
        return number.value

    def keep_alive(self, max_hold: float, on_lost: Callable[[str], object] | None = None) -> None:
        """Renews it automatically, until this long after its acquisition. `on_lost(reason)` is called once if it is lost all
        the same, in a thread of its own: it should only pass on the news."""
        self._call("keep_alive", ms(max_hold))
        if on_lost is not None:
            self.on_lost(on_lost)

    def on_lost(self, function: Callable[[str], object]) -> None:
        """Another function for the loss of a lock that is kept alive; called at once if it is lost already."""
        function = weakly(self._functions, function)

        def call(reason: int, _user: Any) -> None:
            function(REASONS.get(reason, "over"))

        self._register("on_lost", ON_LOST(noting(self._called_back_in, call)))

    def on_expiring(self, margin: float, function: Callable[[float], object]) -> None:
        """Calls function(seconds left) once, when no more than `margin` of the validity of a lock that is kept alive is left,
        since no renewal has succeeded or max_hold is used up: before the loss, while there is time to save what has been done.
        Choose at most half of the ttl. It runs in a thread of its own, and must not use the lock: other threads may."""
        function = weakly(self._functions, function)

        def call(left: int, _user: Any) -> None:
            function(left / 1000)

        self._register("on_expiring", ms(margin), ON_EXPIRING(noting(self._called_back_in, call)))

    def _register(self, name: str, *arguments: Any) -> None:
        """Passes a callback, the last argument, to the library. It lives for as long as the library may call it."""
        self._held()
        self._callbacks.append(arguments[-1])
        with ending.registering():
            _called_back[id(self._callbacks)] = self._library, self._handle, self._calls, self._callbacks
            self._call(name, *arguments, None)

    def mark_done(self, period: float, took: float) -> None:
        """Marks the work of this lock, which has taken `took` seconds, as done for the rest of the period that began with it: until
        then `Redlock.last_run` returns it. Call it while the lock is held. Lost: it is over; Unavailable: try again, with the time that
        has passed added to `took`. Config: `took` is not less than `period`; or it is no plain lock."""
        self._call("mark_done", ms(period), ms(took))

    def stop(self) -> None:
        """Ends the renewal. The lock stays valid until its deadline."""
        self._call("stop")

    def wait_lost(self, timeout: float) -> None:
        """Waits until a lock that is kept alive is lost, then raises Lost. Returns if it is still held after `timeout`."""
        end = time.monotonic() + ms(timeout) / 1000
        while True:
            # Between two of them handlers of signals run.
            self._call("wait_lost", ms(max(0, min(SLICE, end - time.monotonic()))))
            if time.monotonic() >= end:
                return

    def release(self) -> None:
        """Releases it. Lost: it was lost before; Unavailable: too few nodes confirmed, and it ends with its ttl; Config: it was
        released or left before, also by another thread."""
        self._finish("release")

    def leak(self) -> None:
        """Leaves it to its ttl: a throttle; or another process has it from now on. Lost: in a forked child. A lock that is over is
        left without an error."""
        self._finish("leak")

    def leak_for(self, seconds: float) -> None:
        """Leaves it taken for so long from now, or to its ttl if that is sooner: for work that must not be done again too
        soon, but may take longer than that."""
        self._finish("leak_for", ms(seconds))

    def drop(self) -> None:
        """Releases it if it is held, and raises nothing."""
        try:
            if self._handle:
                self.release()
        except Error:
            pass

    def _held(self) -> None:
        if not self._handle:
            raise Config("this lock was released or left before")

    def _call(self, name: str, *arguments: Any) -> Any:
        """Calls a function of the library with the handle."""
        return _call(self._library, self._handle, self._calls, name, *arguments)

    def _finish(self, name: str, *arguments: int) -> None:
        """Calls a function of the library that ends the lock, which calls no function of it from then on."""
        function = getattr(self._library, f"redlock_lock_{name}")
        try:
            function(self._taken(), *arguments)
        except (Lost, Unavailable):
            _called_back.pop(id(self._callbacks), None)
            raise
        _called_back.pop(id(self._callbacks), None)

    def _taken(self) -> c_void_p:
        """The handle, for a function of the library that frees it: so it is forgotten first, and no other thread is in a call
        with it. (A call of this thread is one that a signal handler, in which this runs, interrupted outside of the library.)"""
        handle, this = c_void_p(), this_thread()
        # The library would refuse that, and free nothing; and a wait for the thread that waits for this one would not end.
        if this in self._called_back_in or this in self._calls and this in reporting:
            raise Config("a function of this lock must not end it")
        try:
            # One step, also with threads that have no common lock: of several calls one gets the handle.
            if self._ender.setdefault("handle", handle) is not handle:
                # Not silently: the end of a `release` shows that the work was protected.
                raise Config("this lock was released or left before")
            handle.value = self._handle.value
            self._handle.value = None
            # In a forked child there is none of the threads that were in a call at the fork.
            while any(thread != this and thread[0] == this[0] for thread in self._calls.copy()):
                time.sleep(0.001)
        except BaseException:  # Ctrl-C
            if self._ender.get("handle") is handle:
                if handle:
                    self._handle.value = handle.value
                self._ender.clear()
            raise
        return handle

    def __enter__(self) -> Lock:
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

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None) -> None:
        if not self._handle:
            return
        try:
            self.release()
        except Lost:
            if kind is None:
                raise  # the work was not protected to its end
        except Unavailable:
            pass  # the ttl ends it
        except Config:
            # Another thread may have ended it, as the lines of the `with` may.
            if not self._ender:
                raise

    def __del__(self) -> None:
        raised: BaseException | None = None
        try:
            # In a forked child it is a copy, and the parent's lock.
            if self._handle and self._process == os.getpid() and self.owned():
                text = f"the lock {self._name!r} was thrown away while it was held: use `with`, or release or leak it"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        finally:  # the warning may be an error, and the handler of a signal may raise one: the interpreter shows it, and goes on
            for _ in range(100):
                try:
                    self._end()
                    break
                except BaseException as error:
                    raised = error
            if raised is not None:
                try:
                    raise raised
                finally:
                    del raised

    def _end(self) -> None:
        if this_thread() not in self._called_back_in:
            self.drop()
            return
        # In a function of this lock, which must not end it.
        try:
            threading.Thread(target=self.drop, name="redlock-end", daemon=True).start()
        except RuntimeError:  # the library may still call its functions
            _not_ended.append(self)

    def __reduce__(self) -> Any:
        raise TypeError("a lock cannot be copied or pickled: another thread uses the same one, and another process takes it over by resume()")

    def __repr__(self) -> str:
        return f"<redlock.Lock {self._name!r}: {f'{self.remaining:.3f} s left' if self.owned() else self.lost}>"


def _call(library: Any, handle: c_void_p, calls: list[Thread], name: str, *arguments: Any) -> Any:
    function, thread = getattr(library, f"redlock_lock_{name}"), this_thread()
    outer = calls.count(thread)
    try:
        calls.append(thread)
        return function(handle, *arguments)
    finally:
        if calls.count(thread) > outer:  # not if a signal handler has raised before it was added
            calls.remove(thread)


# What belongs to the locks with functions that the library may call, until it has ended them. (The `Lock` itself may be gone: an
# exception of a signal handler at the first step of its `__del__` leaves the lock.)
_called_back: dict[int, tuple[Any, c_void_p, list[Thread], list[Any]]] = {}


# Those that were thrown away in a function of their own, and that no thread could end.
_not_ended: list[Lock] = []


def _stop_all() -> None:
    """No function is called when the interpreter is gone."""
    for library, handle, calls, _ in list(_called_back.values()):
        try:
            if handle:
                _call(library, handle, calls, "stop")
        except Error:
            pass


ending.last.append(_stop_all)
