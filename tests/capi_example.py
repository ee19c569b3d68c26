"""The classes of examples/capi/batch_job.py, which must be where Python looks for modules.

    capi_example.py LIBRARY URL...
"""

import sys
import time

from batch_job import OPTION_NODE_TIMEOUT_MS, Busy, Error, Lost, Redlock


def raises(expected, call):
    try:
        call()
    except Error as error:
        assert type(error) is expected and str(error), repr(error)
        return
    raise AssertionError(f"no {expected}")


def expire():
    with locks.lock("short", ttl=0.5):
        time.sleep(1)


with Redlock(sys.argv[1], sys.argv[2:]) as locks:
    locks.set(OPTION_NODE_TIMEOUT_MS, 2000)
    raises(Error, lambda: locks.set(99, 1))
    raises(Error, lambda: locks.acquire("", ttl=60))
    with locks.lock("größe", ttl=60) as lock:
        raises(Error, lambda: lock.ensure(100))
        lock.extend(120)
        lock.ensure(100)
        # The same name as bytes.
        raises(Busy, lambda: locks.acquire("größe".encode(), ttl=60, wait=0))
        raises(Busy, lambda: locks.acquire("größe", ttl=60, wait=0.1))
    lock = locks.acquire("größe", ttl=60)
    lock.release()
    raises(Error, lambda: lock.extend(60))
    raises(Lost, expire)
    try:
        with locks.lock("größe", ttl=60):
            raise KeyError
    except KeyError:
        locks.acquire("größe", ttl=60, wait=0).release()
print("ok")
