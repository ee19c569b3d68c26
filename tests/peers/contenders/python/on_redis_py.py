"""The Lock of redis-py, which is for one server."""

from redis import Redis
from redis.exceptions import LockError, LockNotOwnedError

import speak


class Contender:
    def __init__(self):
        self.redis = Redis.from_url(speak.nodes()[0])
        self.locks = {}

    def acquire(self, name, ttl, wait):
        lock = self.redis.lock(name, timeout=ttl / 1000, blocking_timeout=wait / 1000)
        if not lock.acquire():
            return "busy", "False"
        self.locks[name] = lock
        return "ok"

    def release(self, name):
        return self.end(name, lambda lock: lock.release())

    def extend(self, name, ttl):
        return self.end(name, lambda lock: lock.extend(ttl / 1000, replace_ttl=True))

    def check(self, name):
        held = name in self.locks and self.locks[name].owned()
        return "ok" if held else ("lost", "False")

    def end(self, name, call):
        if name not in self.locks:
            return "lost", "no lock"
        try:
            call(self.locks[name])
        except LockNotOwnedError as error:
            return "lost", str(error)
        except LockError as error:
            # "Cannot extend an unlocked lock": it was released.
            return "lost", str(error)
        return "ok"


speak.speak("library=redis-py version=8.1.0 wait=given", Contender())
