"""Calls that wait: signal handlers run meanwhile, and no wait outlives the interpreter.

The library asks a function of the waiting thread every 50 ms whether to go on. Handlers of signals run in that function, in the
main thread, and what one raises ends the wait. The place in the queue, and the message that wakes the wait, stay the library's.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import nullcontext
from typing import Any, Callable, Generator

from ._library import KEEP_TRYING, Cancelled


class _Ending:
    """The end of the interpreter. Threads that are not waited for (daemons) still run then, and a lock that one of them
    got would stay taken for its ttl."""

    # How often a step is tried.
    TRIES = 100

    def __init__(self) -> None:
        self.last: list[Callable[[], None]] = []
        self.begin()

    def begin(self) -> None:
        self.begun, self.is_over, self.waits = False, False, 0
        # (Its lock is one that `run` can take again, if an exception of a signal handler has kept it from giving it back.)
        self.changed = threading.Condition()

    def __enter__(self) -> None:
        with self.changed:
            if self.begun:
                raise SystemExit  # of this thread
            self.waits += 1

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.waits -= 1
            self.changed.notify_all()

    def run(self) -> None:
        """A step that an exception of a signal handler ends is repeated: a function that stays registered would be called when the
        interpreter is gone, and abort the process. (Such an exception can be of any class.)"""
        if self.is_over:
            return
        raised: BaseException | None = None
        for step in (self._end_waits, *self.last):
            for _ in range(self.TRIES):
                try:
                    step()
                    break
                except BaseException as error:
                    raised = raised or error
        self.is_over = True
        if raised is not None:
            try:
                raise raised
            finally:
                del raised

    def _end_waits(self) -> None:
        with self.changed:
            self.begun = True
            while self.waits:
                self.changed.wait()

    def registering(self) -> Any:
        """For a `with` around the registration of a function: none of a daemon thread comes behind the end."""
        return nullcontext() if threading.current_thread() is threading.main_thread() else self


ending = _Ending()
# The second one is for an exception of a signal handler that the first one could not catch.
for _ in range(2):
    atexit.register(ending.run)
# In a forked child the waits of the parent's threads do not exist.
os.register_at_fork(after_in_child=ending.begin)


class _Wait:
    """The function that a call asks, and the exception that ended the wait.

    It is a generator's `send`, since an exception of a signal handler must be caught here: in a plain function it can be
    raised before the first `try`, and ctypes would print it and go on."""

    raised: BaseException | None = None

    def __init__(self, main: bool) -> None:
        self.main = main
        answers = self._answers()
        next(answers)
        self.function = KEEP_TRYING(answers.send)

    def _answers(self) -> Generator[int, Any, None]:
        try:
            try:
                while self.main or not ending.begun:
                    yield 1
            except GeneratorExit:  # it is not needed any longer
                return
            except BaseException as raised:
                self.raised = raised
        except BaseException as raised:  # that of a second signal, while the first one is stored
            self.raised = raised
        yield 0


class _Idle(threading.local):
    """Those of this thread that no call uses. (A signal handler can wait for a lock in the middle of another wait.)"""

    def __init__(self) -> None:
        self.waits: list[_Wait] = []


_idle = _Idle()


def acquire(library: Any, function: Callable[..., None], arguments: tuple[Any, ...], lock: Any) -> Any:
    """Calls a function that makes the handle of this lock, which is released if the call ends otherwise."""
    main = threading.current_thread() is threading.main_thread()
    if main:
        return _acquire(library, function, arguments, lock, main)
    with ending:
        _acquire(library, function, arguments, lock, main)
        if ending.begun:
            lock.drop()
            raise SystemExit
    return lock


class _NoLock:
    """In place of a lock, for a call that makes none."""

    def drop(self) -> None:
        pass


def ask(library: Any, function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function that asks the nodes something."""
    acquire(library, function, arguments, _NoLock())


def _acquire(library: Any, function: Callable[..., None], arguments: tuple[Any, ...], lock: Any, main: bool) -> Any:
    wait = _idle.waits.pop() if _idle.waits else _Wait(main)
    try:
        library.redlock_set_keep_trying(wait.function, None)
        function(*arguments)
    except Cancelled:
        if wait.raised is None:
            raise SystemExit from None
    finally:
        if wait.raised is None and (main or not ending.begun):
            _idle.waits.append(wait)
    if wait.raised is not None:
        lock.drop()
        raised, wait.raised = wait.raised, None
        try:
            raise raised
        finally:
            del raised  # it would be in a cycle with its traceback
    return lock
