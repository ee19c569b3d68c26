"""Nodes for unit tests, in the test's own process: redlock-sync's `testing`.

    with Node() as node:
        locks = Redlock([node.url])
        node.hold("shop:account:17", label="web-3")  # by another process
        assert locks.try_lock("shop:account:17", ttl=10) is None

The library must have been built with the feature `testing`: `pip wheel -C features=capi,tls,testing`. A node is no server: only
locks may talk to it, and only in tests. Times are in seconds. What a test does to a node holds until it does something else.
The header redlock_testing.h describes each method.
"""

from __future__ import annotations

import ctypes
import functools
import math
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any, Callable

from ._library import find, load, ms, name_bytes, text_bytes
from .errors import Config

_NAME: list[Any] = [c_void_p, c_char_p, c_size_t]
_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "start": ([c_void_p], c_int),
    "free": ([c_void_p], None),
    "url": ([c_void_p, c_char_p, c_size_t], c_size_t),
    "hold": ([*_NAME, c_char_p, c_uint64], c_int),
    "release": (_NAME, c_int),
    "hold_all": ([c_void_p], c_int),
    "release_all": ([c_void_p], None),
    "held_ms": (_NAME, c_uint64),
    "label": ([*_NAME, c_char_p, c_size_t], c_size_t),
    "waiting": (_NAME, c_size_t),
    "advance": ([c_void_p, c_uint64], None),
    "refuse": ([c_void_p, c_char_p], c_int),
    "answer_late": ([c_void_p, c_uint64], None),
    "be_silent": ([c_void_p], None),
    "go_down": ([c_void_p], None),
    "recover": ([c_void_p], None),
    "close_connections": ([c_void_p], None),
    "forget": ([c_void_p], None),
    "requests": ([c_void_p, c_int], c_uint64),
}
REQUESTS = ["acquire", "extend", "release", "fence", "other", "connections"]  # the numbers from 1 on


@functools.lru_cache(maxsize=None)
def _functions(path: str) -> dict[str, Callable[..., Any]]:
    library = load(path)
    functions = {}
    for name, (arguments, result) in _FUNCTIONS.items():
        try:
            function = getattr(library, "redlock_testing_" + name)
        except AttributeError:
            advice = "this library has no nodes for tests: build it with the feature `testing`"
            raise OSError(f"{path}: {advice}") from None
        function.argtypes, function.restype = arguments, result
        if name in ("start", "hold", "hold_all", "refuse"):
            function.errcheck = library.redlock_new.errcheck
        functions[name] = function
    return functions


class Node:
    """A node without locks. It ends with a `with`, and at the latest when nothing refers to it any more."""

    _handle: c_void_p | None = None

    def __init__(self, *, library: str | None = None) -> None:
        self._functions = _functions(find(library))
        handle = c_void_p()
        self._functions["start"](byref(handle))
        self._handle = handle

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._handle is None:
            raise Config("this node has ended")
        return self._functions[name](self._handle, *arguments)

    def _text(self, name: str, *arguments: Any) -> str:
        text = ctypes.create_string_buffer(200)
        self._call(name, *arguments, text, len(text))
        return text.value.decode()

    @property
    def url(self) -> str:
        return self._text("url")

    def hold(self, name: str | bytes, label: str = "", ttl: float = math.inf) -> None:
        self._call("hold", *name_bytes(name), text_bytes("the label", label), ms(ttl))

    def release(self, name: str | bytes) -> bool:
        return bool(self._call("release", *name_bytes(name)))

    def hold_all(self) -> None:
        self._call("hold_all")

    def release_all(self) -> None:
        self._call("release_all")

    def held(self, name: str | bytes) -> float:
        """How long the node keeps the lock. 0: it is free."""
        return float(self._call("held_ms", *name_bytes(name))) / 1000

    def label(self, name: str | bytes) -> str:
        return self._text("label", *name_bytes(name))

    def waiting(self, name: str | bytes) -> int:
        return int(self._call("waiting", *name_bytes(name)))

    def advance(self, time: float) -> None:
        self._call("advance", ms(time))

    def refuse(self, error: str) -> None:
        self._call("refuse", text_bytes("the error", error))

    def answer_late(self, by: float) -> None:
        self._call("answer_late", ms(by))

    def be_silent(self) -> None:
        self._call("be_silent")

    def go_down(self) -> None:
        self._call("go_down")

    def recover(self) -> None:
        self._call("recover")

    def close_connections(self) -> None:
        self._call("close_connections")

    def forget(self) -> None:
        self._call("forget")

    def requests(self, kind: str) -> int:
        """One of REQUESTS."""
        if kind not in REQUESTS:
            raise Config(f"no requests {kind}: there are {', '.join(REQUESTS)}")
        return int(self._call("requests", REQUESTS.index(kind) + 1))

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._functions["free"](handle)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
