"""A job that many hosts start and one runs, in Python, with nothing but ctypes.

From the top of the checkout:

    cargo rustc --release --features capi --crate-type cdylib
    python3 examples/capi/batch_job.py target/release/libredlock_sync.so redis://127.0.0.1:6379

It leaves with exit code 75 if another is running it, and with 130 after Ctrl-C.
"""

import ctypes
import signal
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

OK, BUSY, LOST = 0, 1, 2
OPTION_NODE_TIMEOUT_MS = 4

RESOURCE = b"nightly-import"
# How long the others wait at most if this host dies in the middle of the job.
TTL_MS = 10_000
# However long the job takes, it is not renewed for longer than this.
MAX_HOLD_MS = 3600 * 1000


class Error(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Library:
    """The functions of redlock.h that this program uses; a failure is an `Error`."""

    FUNCTIONS = {
        "redlock_new": [POINTER(c_char_p), c_size_t, POINTER(c_void_p)],
        "redlock_set": [c_void_p, c_int, c_uint64],
        "redlock_try_acquire": [c_void_p, c_char_p, c_size_t, c_uint64, POINTER(c_void_p)],
        "redlock_lock_keep_alive": [c_void_p, c_uint64],
        "redlock_lock_ensure": [c_void_p, c_uint64],
        "redlock_lock_release": [c_void_p],
    }

    def __init__(self, path):
        self.dll = ctypes.CDLL(path)
        for name, arguments in self.FUNCTIONS.items():
            # Without this, ctypes would cut pointers to 32 bits.
            getattr(self.dll, name).argtypes = arguments
        self.dll.redlock_free.argtypes = [c_void_p]
        self.dll.redlock_free.restype = None
        self.dll.redlock_last_error.argtypes = [c_char_p, c_size_t]
        self.dll.redlock_last_error.restype = c_size_t

    def call(self, name, *arguments):
        status = getattr(self.dll, name)(*arguments)
        if status != OK:
            text = ctypes.create_string_buffer(500)
            self.dll.redlock_last_error(text, len(text))
            raise Error(status, text.value.decode())


class Lock:
    """Released at the end of a `with`."""

    def __init__(self, library, handle):
        self.library = library
        self.handle = handle

    def keep_alive(self, max_hold_ms):
        self.library.call("redlock_lock_keep_alive", self.handle, max_hold_ms)

    def ensure(self, at_least_ms):
        self.library.call("redlock_lock_ensure", self.handle, at_least_ms)

    def release(self):
        # Frees the handle in any case, so it is forgotten first.
        handle, self.handle = self.handle, None
        self.library.call("redlock_lock_release", handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            self.release()
        except Error as error:
            if kind is None and error.status == LOST:
                raise


class Redlock:
    def __init__(self, library, urls):
        self.library = library
        self.handle = c_void_p()
        array = (c_char_p * len(urls))(*[url.encode() for url in urls])
        library.call("redlock_new", array, len(urls), byref(self.handle))

    def set(self, option, value):
        self.library.call("redlock_set", self.handle, option, value)

    def try_acquire(self, resource, ttl_ms):
        handle = c_void_p()
        arguments = (self.handle, resource, len(resource), ttl_ms, byref(handle))
        self.library.call("redlock_try_acquire", *arguments)
        return Lock(self.library, handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.dll.redlock_free(self.handle)


stop = False


def on_signal(_number, _frame):
    global stop
    stop = True


def job(lock):
    """The lock is renewed meanwhile."""
    for part in range(1, 6):
        if stop:
            print(f"interrupted; the next run goes on at part {part}")
            return 130
        # The write below takes less than 5 s. If less is left (this host was suspended, say), it
        # must not happen any more.
        lock.ensure(5000)
        print(f"importing part {part} of 5", flush=True)
        time.sleep(0.5)
    return 0


def main():
    signal.signal(signal.SIGINT, on_signal)
    library = Library(sys.argv[1])
    with Redlock(library, sys.argv[2:]) as redlock:
        redlock.set(OPTION_NODE_TIMEOUT_MS, 500)  # a job is in no hurry
        try:
            with redlock.try_acquire(RESOURCE, TTL_MS) as lock:
                lock.keep_alive(MAX_HOLD_MS)
                result = job(lock)
        except Error as error:
            if error.status != BUSY:
                raise
            print("another host is running it")
            return 75  # EX_TEMPFAIL: try again later
    if result == 0:
        print("done")
    return result


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: batch_job.py LIBRARY URL...")
    sys.exit(main())
