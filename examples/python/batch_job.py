"""A job that many hosts start and one runs at a time: examples/capi/batch_job.c in Python. The wheel must be installed.

    python3 examples/python/batch_job.py redis://127.0.0.1:6379

It leaves with exit code 75 if another host runs it, and with 130 after Ctrl-C.
"""

import signal
import sys
import time

from redlock import Redlock

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


def main(*urls):
    signal.signal(signal.SIGINT, on_signal)
    locks = Redlock(urls, node_timeout=0.5)  # a job is in no hurry
    lock = locks.try_lock("shop:nightly-import", TTL)
    if lock is None:
        print("another host is running it")
        return 75  # EX_TEMPFAIL: try again later
    with lock:
        lock.keep_alive(MAX_HOLD)
        result = job(lock)
    if result == 0:
        print("done")
    return result


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: batch_job.py URL...")
    sys.exit(main(*sys.argv[1:]))
