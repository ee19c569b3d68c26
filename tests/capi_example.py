"""The module examples/capi/redlock.py, which must be where Python looks for modules.

    capi_example.py LIBRARY URL...

Where COMMAND is set, it is the path of the command `redlock`.
"""

import gc
import json
import math
import os
import re
import subprocess
import sys
import threading
import time

from redlock import OPTIONS, Busy, Config, Error, ExtensionLimit, Lock, Lost, Redlock, TooSlow, Unavailable


def raises(expected, call):
    try:
        call()
    except Error as error:
        assert type(error) is expected and str(error), repr(error)
        return error
    raise AssertionError(f"no {expected}")


library, *urls = sys.argv[1:]
locks = Redlock(urls, library, node_timeout=2, wait=30, max_extensions=2)
locks.connect()

# Values that cannot work.
raises(Config, lambda: Redlock(urls, library, no_such_option=1))
raises(Config, lambda: Redlock(urls, library, node_timeout=0))
raises(Config, lambda: Redlock([], library))
raises(Config, lambda: locks.lock("", ttl=60))
raises(Config, lambda: locks.lock("größe", ttl=-1))
for option in OPTIONS:
    Redlock(urls, library, **{option: 1})
try:
    Redlock(urls, "no/such.so")
    raise AssertionError("there is no such library")
except OSError as error:
    assert "no/such.so" in str(error) and "as `library`" in str(error), error

# What is seen of a lock; behind a prefix it is another one. One node may be a string.
events = []
seen = Redlock(urls, library, node_timeout=2, label="web-3", prefix="team:")
seen.observe(lambda *event: events.append(event))
with seen.lock("seen", ttl=60):
    state, holder, left = seen.inspect("seen")
    assert state == "held" and holder.endswith(" (web-3)") and 30 < left <= 60, (state, holder, left)
    assert locks.inspect("seen") == ("free", "", 0)
    assert locks.inspect("team:seen")[0] == "held"
    raises(Busy, lambda: seen.lock("seen", ttl=60, wait=0))
assert [event[:2] for event in events if event[1] == "seen"] == [
    ("acquired", "seen"), ("not acquired", "seen"), ("ended", "seen")], events
fit, findings = seen.check("check")
assert fit and "appendonly" in findings, findings
assert Redlock(urls[0], library).inspect("seen")[0] == "free"


# The documents for programs are those of the command.
def steady(value):
    """Without what changes from one moment to the next."""
    if isinstance(value, list):
        return [steady(item) for item in value if not (isinstance(item, dict) and item.get("code") in ("latency", "clock"))]
    if isinstance(value, dict):
        momentary = ("remaining_ms", "uptime_s", "round_trip_us", "clock_offset_ms")
        return {key: item is None if key in momentary else steady(item) for key, item in value.items()}
    if isinstance(value, str):
        # Each names the option as it is given there.
        value = value.replace("--restart-guard", "restart_guard")
        return re.sub("[0-9]+ [a-z]+", "time", value)
    return value


def of_command(nodes, *arguments):
    environment = {**os.environ, "REDLOCK_NODES": ",".join(nodes)}
    command = [os.environ["COMMAND"], *arguments, "--json", "--node-timeout", "2s"]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE).stdout)


if os.environ.get("COMMAND"):
    odd = b'gr\xc3\xb6\xc3\x9fe "\\\n\x1b\xff'
    kinds = [seen.permit("documents", 2, ttl=60), seen.permit("documents", 2, ttl=60), seen.read_lock("read", ttl=60),
             locks.lock(odd, ttl=60)]
    # Nodes that all answer, one that does not, and no other.
    for nodes in urls, [*urls, "redis://127.0.0.1:1"], ["redis://127.0.0.1:1"]:
        looks = Redlock(nodes, library, node_timeout=2)
        for name in "free", "team:documents", "team:read", odd:
            found, expected = looks.inspect_json(name), of_command(nodes, "inspect", name)
            assert steady(found) == steady(expected), (found, expected)
        found, expected = looks.check_json("probe"), of_command(nodes, "doctor", "--probe", "probe")
        assert steady(found) == steady(expected), (found, expected)
    found = seen.inspect_json("documents")
    assert [holder["slot"] for holder in found["holders"]] == [0, 1], found
    assert 30_000 < found["holders"][0]["remaining_ms"] <= 60_000, found
    for lock in kinds:
        lock.release()
raises(Config, lambda: locks.inspect_json(""))
raises(Config, lambda: locks.check_json(""))

# A lock, and what can be asked of it.
with locks.lock("größe", ttl=60) as lock:
    assert 50 < lock.remaining < 60 and lock.lost is None
    raises(TooSlow, lambda: lock.ensure(100))
    lock.extend(120)
    lock.ensure(100)
    assert lock.fencing_token() == lock.fencing_token() > 0
    # The same name as bytes.
    assert locks.try_lock("größe".encode(), ttl=60) is None
    raises(Busy, lambda: locks.lock("größe", ttl=60, wait=0.1))
    lock.extend(120)
    raises(ExtensionLimit, lambda: lock.extend(120))
lock = locks.try_lock("größe", ttl=60)
lock.release()
assert "released" in str(raises(Config, lambda: lock.extend(60)))

# Semaphores, read-write locks, several names.
with locks.permit("pool", 2, ttl=60) as one, locks.permit("pool", 2, ttl=60, wait=0) as two:
    assert {one.slot, two.slot} == {0, 1}
    raises(Busy, lambda: locks.permit("pool", 2, ttl=60, wait=0))
    raises(Config, lambda: locks.read_lock("pool", ttl=60))
raises(Config, lambda: locks.permit("pool", 0, ttl=60))
with locks.read_lock("rw", ttl=60) as one, locks.read_lock("rw".encode(), ttl=60):
    assert one.slot is None
    raises(Busy, lambda: locks.write_lock("rw", ttl=60, wait=0))
locks.write_lock("rw", ttl=60).release()
with locks.several(["größe", b"other"], ttl=60):
    assert locks.try_lock("größe", ttl=60) is None and locks.try_lock("other", ttl=60) is None
raises(Config, lambda: locks.several([], ttl=60))
with locks.several("größe", ttl=60):  # one name, not its letters
    assert locks.try_lock("größe", ttl=60) is None

# A wait without an end, while another thread waits, too.
lock = locks.lock("größe", ttl=60, wait=math.inf)
others = [threading.Thread(target=lambda: locks.lock("größe", ttl=60, wait=math.inf).release()) for _ in range(3)]
for other in others:
    other.start()
lock.release()
for other in others:
    other.join()


# The end of the ttl is a loss, which the end of the `with` reports.
def expire():
    with locks.lock("short", ttl=0.5) as lock:
        time.sleep(1)
        assert lock.lost == "over" and lock.remaining == 0


raises(Lost, expire)


# A `with` protects from its first line to its last one, or raises before the first one.
def enter(lock):
    with lock:
        raise AssertionError("this is not protected")


takes = [lambda: locks.lock("once", ttl=60), lambda: locks.permit("once", 2, ttl=60), lambda: locks.read_lock("once", ttl=60),
         lambda: locks.write_lock("once", ttl=60), lambda: locks.several(["once", "twice"], ttl=60),
         lambda: locks.try_lock("once", ttl=60)]
for take in takes:
    for keep in False, True:
        with take() as lock:
            if keep:
                lock.keep_alive(3600)
            # The inner one would release it in the middle of the outer one.
            assert "with" in str(raises(Config, lambda: enter(lock)))
            lock.ensure(1)
        assert "with" in str(raises(Config, lambda: enter(lock)))
        locks.try_lock("once", ttl=60).release()
        for end in Lock.release, lambda lock: lock.leak_for(0):
            lock = take()
            if keep:
                lock.keep_alive(3600)
            end(lock)
            assert "released or left before" in str(raises(Config, lambda: enter(lock)))
            locks.lock("once", ttl=60, wait=30).release()
lock = locks.lock("over", ttl=0.5)
time.sleep(1)
raises(Lost, lambda: enter(lock))

# What the work raises is not hidden, and the lock is released.
try:
    with locks.lock("größe", ttl=60):
        raise KeyError
except KeyError:
    locks.try_lock("größe", ttl=60).release()

# Renewed beyond its ttl, and no longer than that.
with locks.lock("kept", ttl=6) as lock:
    lock.keep_alive(3600)
    lock.wait_lost(8)
    assert lock.lost is None
    raises(Config, lambda: lock.keep_alive(3600))
lock = locks.lock("kept", ttl=6)
lock.keep_alive(2)
raises(Lost, lambda: lock.wait_lost(30))
assert lock.lost == "hold limit", lock.lost
raises(Lost, lock.release)

# What nothing refers to any more is released; what is leaked stays until its ttl.
lock = locks.lock("größe", ttl=60)
del lock
gc.collect()
lock = locks.lock("größe", ttl=60, wait=0)
lock.release()
with locks.lock("throttle", ttl=5) as lock:
    lock.leak()
raises(Config, lambda: enter(lock))
assert locks.try_lock("throttle", ttl=5) is None
locks.lock("throttle", ttl=60, wait=30).release()
# And what is left for a time stays for that.
began = time.monotonic()
locks.lock("report", ttl=60).leak_for(1)
assert locks.try_lock("report", ttl=60) is None
locks.lock("report", ttl=60, wait=30).leak_for(0)
assert time.monotonic() - began > 0.9
locks.try_lock("report", ttl=60).release()

# Nodes that are not there.
nowhere = Redlock(["redis://127.0.0.1:1"], library)
error = raises(Unavailable, nowhere.connect)
assert not error.permanent and error.retry_after == 0
assert issubclass(Config, ValueError)
# A lock may outlive what it came from.
lock = locks.lock("größe", ttl=60)
del locks
gc.collect()
lock.release()
print("ok")
