"""For one server. `expire` is in whole seconds."""

import math

from redis import Redis
from redis_lock import Lock, NotAcquired

import speak


class Contender:
    def __init__(self):
        self.redis = Redis.from_url(speak.nodes()[0])
        self.locks = {}

    def acquire(self, name, ttl, wait):
        expire = math.ceil(ttl / 1000)
        lock = Lock(self.redis, name, expire=expire)
        # It refuses to wait for longer than `expire`.
        if not lock.acquire(timeout=min(wait / 1000, expire)):
            return "busy", "False"
        self.locks[name] = lock
        return "ok"

    def release(self, name):
        return self.end(name, lambda lock: lock.release())

    def extend(self, name, ttl):
        return self.end(name, lambda lock: lock.extend(expire=math.ceil(ttl / 1000)))

    def check(self, name):
        """Its `_held` is not public; the owner's id is."""
        lock = self.locks.get(name)
        held = lock is not None and lock.get_owner_id() == lock.id
        return "ok" if held else ("lost", "another owner")

    def end(self, name, call):
        if name not in self.locks:
            return "lost", "no lock"
        try:
            call(self.locks[name])
        except NotAcquired as error:
            return "lost", str(error)
        return "ok"


# A key beside the lock wakes waiters; it ends after a second.
speak.speak("library=python-redis-lock version=4.0.1 wait=given keeps=lock-signal:", Contender())
