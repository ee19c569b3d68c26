"""A job that many hosts start and one runs, in Python, with nothing but ctypes.

From the top of the checkout:

    cargo rustc --release --features capi --crate-type cdylib
    python3 examples/capi/batch_job.py target/release/libredlock_sync.so redis://127.0.0.1:6379

It leaves with exit code 75 if another is running it, and with 130 after Ctrl-C. `Redlock` and `Lock` are
for any program:

    with Redlock("libredlock_sync.so", ["redis://127.0.0.1"]) as locks:
        with locks.lock("account:17", ttl=10) as lock:  # waits for up to 10 s, then `Busy`
            ...
            lock.extend(10)
"""

import ctypes
import signal
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p


class Error(Exception):
    """What `redlock_last_error` says."""


class Busy(Error):
    """Held by another, for the whole time waited."""


class Lost(Error):
    """Not held any more: stop what it protects."""


OK = 0
ERRORS = {1: Busy, 2: Lost}
OPTION_NODE_TIMEOUT_MS = 4

# Those of redlock.h that return a status.
FUNCTIONS = {
    "redlock_new": [POINTER(c_char_p), c_size_t, POINTER(c_void_p)],
    "redlock_set": [c_void_p, c_int, c_uint64],
    "redlock_acquire_within": [c_void_p, c_char_p, c_size_t, c_uint64, c_uint64, POINTER(c_void_p)],
    "redlock_lock_ensure": [c_void_p, c_uint64],
    "redlock_lock_extend": [c_void_p, c_uint64],
    "redlock_lock_keep_alive": [c_void_p, c_uint64],
    "redlock_lock_release": [c_void_p],
}


def load(path):
    """The library. A call that fails raises an `Error`."""
    library = ctypes.CDLL(path)

    def check(status, _function, _arguments):
        if status != OK:
            text = ctypes.create_string_buffer(500)
            library.redlock_last_error(text, len(text))
            raise ERRORS.get(status, Error)(text.value.decode())

    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = arguments  # without them, ctypes would cut pointers to 32 bits
        function.errcheck = check
    library.redlock_free.argtypes = [c_void_p]
    library.redlock_free.restype = None
    library.redlock_last_error.argtypes = [c_char_p, c_size_t]
    library.redlock_last_error.restype = c_size_t
    return library


def ms(seconds):
    return round(seconds * 1000)


class Lock:
    """Released at the end of a `with`. Times are in seconds."""

    def __init__(self, library, handle):
        self.library = library
        self.handle = handle

    def ensure(self, at_least):
        """Before a write that takes so long: an `Error` if less is left."""
        self.library.redlock_lock_ensure(self.handle, ms(at_least))

    def extend(self, ttl):
        self.library.redlock_lock_extend(self.handle, ms(ttl))

    def keep_alive(self, max_hold):
        """Has it renewed, for so long at most."""
        self.library.redlock_lock_keep_alive(self.handle, ms(max_hold))

    def release(self):
        # Frees the handle in any case, so it is forgotten first.
        handle, self.handle = self.handle, None
        self.library.redlock_lock_release(handle)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.release()
        except Error as error:
            # If too few nodes have confirmed the release, the ttl ends the lock.
            if kind is None and isinstance(error, Lost):
                raise


class Redlock:
    """The nodes. One for the whole program, for all of its threads."""

    def __init__(self, path, urls):
        self.library = load(path)
        self.handle = c_void_p()
        array = (c_char_p * len(urls))(*[url.encode() for url in urls])
        self.library.redlock_new(array, len(urls), byref(self.handle))

    def set(self, option, value):
        self.library.redlock_set(self.handle, option, value)

    def acquire(self, resource, ttl, wait=10):
        """Waits while another has it, for so long at most. 0 is one attempt."""
        if isinstance(resource, str):
            resource = resource.encode()
        handle = c_void_p()
        self.library.redlock_acquire_within(
            self.handle, resource, len(resource), ms(ttl), ms(wait), byref(handle)
        )
        return Lock(self.library, handle)

    # `with locks.lock(...) as lock:`
    lock = acquire

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.library.redlock_free(self.handle)


# How long the others wait at most if this host dies in the middle of the job.
TTL = 10
# However long the job takes, it is not renewed for longer than this.
MAX_HOLD = 3600

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
        lock.ensure(5)
        print(f"importing part {part} of 5", flush=True)
        time.sleep(0.5)
    return 0


def main(path, *urls):
    signal.signal(signal.SIGINT, on_signal)
    with Redlock(path, urls) as locks:
        locks.set(OPTION_NODE_TIMEOUT_MS, 500)  # a job is in no hurry
        try:
            with locks.lock("nightly-import", ttl=TTL, wait=0) as lock:
                lock.keep_alive(MAX_HOLD)
                result = job(lock)
        except Busy:
            print("another host is running it")
            return 75  # EX_TEMPFAIL: try again later
    if result == 0:
        print("done")
    return result


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: batch_job.py LIBRARY URL...")
    sys.exit(main(*sys.argv[1:]))
