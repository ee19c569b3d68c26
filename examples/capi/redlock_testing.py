"""Nodes for unit tests, in the test's own process: redlock-sync's `testing`, with nothing but ctypes. A module to copy,
beside redlock.py. The library must have been built with `--features capi,testing`.

    with Node(library) as node:
        locks = Redlock([node.url], library)
        node.hold("shop:account:17", label="web-3")  # by another process
        assert locks.try_lock("shop:account:17", ttl=10) is None

A node is no server: only locks may talk to it, and only in tests. Times are in seconds. What a test does to a node holds
until it does something else. The header redlock_testing.h says what each method does.
"""

import ctypes
import functools
import math
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

from redlock import Config, _load, _ms

_NAME = [c_void_p, c_char_p, c_size_t]
_FUNCTIONS = {
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


@functools.cache
def _functions(path):
    library = _load(path)
    functions = {}
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, "redlock_testing_" + name)
        function.argtypes, function.restype = arguments, result
        if name in ("start", "hold", "hold_all", "refuse"):
            function.errcheck = library.redlock_new.errcheck
        functions[name] = function
    return functions


def _name(name):
    name = name.encode() if isinstance(name, str) else name
    return name, len(name)


class Node:
    """A node without locks. It ends with a `with`, and at the latest when nothing refers to it any more."""

    _handle = None

    def __init__(self, library="libredlock_sync.so"):
        self._functions = _functions(library)
        handle = c_void_p()
        self._functions["start"](byref(handle))
        self._handle = handle

    def _call(self, name, *arguments):
        if self._handle is None:
            raise Config("this node has ended")
        return self._functions[name](self._handle, *arguments)

    def _text(self, name, *arguments):
        text = ctypes.create_string_buffer(200)
        self._call(name, *arguments, text, len(text))
        return text.value.decode()

    @property
    def url(self):
        return self._text("url")

    def hold(self, name, label="", ttl=math.inf):
        self._call("hold", *_name(name), label.encode(), _ms(ttl))

    def release(self, name):
        return bool(self._call("release", *_name(name)))

    def hold_all(self):
        self._call("hold_all")

    def release_all(self):
        self._call("release_all")

    def held(self, name):
        """How long the node keeps the lock. 0: it is free."""
        return self._call("held_ms", *_name(name)) / 1000

    def label(self, name):
        return self._text("label", *_name(name))

    def waiting(self, name):
        return self._call("waiting", *_name(name))

    def advance(self, time):
        self._call("advance", _ms(time))

    def refuse(self, error):
        self._call("refuse", error.encode())

    def answer_late(self, by):
        self._call("answer_late", _ms(by))

    def be_silent(self):
        self._call("be_silent")

    def go_down(self):
        self._call("go_down")

    def recover(self):
        self._call("recover")

    def close_connections(self):
        self._call("close_connections")

    def forget(self):
        self._call("forget")

    def requests(self, kind):
        """One of REQUESTS."""
        if kind not in REQUESTS:
            raise Config(f"no requests {kind}: there are {', '.join(REQUESTS)}")
        return self._call("requests", REQUESTS.index(kind) + 1)

    def close(self):
        handle, self._handle = self._handle, None
        if handle is not None:
            self._functions["free"](handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()
