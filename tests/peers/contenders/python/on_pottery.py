from pottery import QuorumNotAchieved, Redlock
from pottery.exceptions import ExtendUnlockedLock, ReleaseUnlockedLock
from redis import Redis

import speak


class Contender:
    def __init__(self):
        self.masters = {Redis.from_url(node) for node in speak.nodes()}
        self.locks = {}

    def acquire(self, name, ttl, wait):
        lock = Redlock(key=name, masters=self.masters, auto_release_time=ttl / 1000)
        if not lock.acquire(timeout=wait / 1000):
            return "busy", "False"
        self.locks[name] = lock
        # Its acquire tells no validity; `locked` does, which is another question to the nodes.
        return "ok"

    def release(self, name):
        if name not in self.locks:
            return "lost", "no lock"
        try:
            self.locks.pop(name).release()
        except ReleaseUnlockedLock as error:
            return "lost", repr(error)
        return "ok"

    def extend(self, name, ttl):
        """To the lock's own ttl, which is the same here."""
        if name not in self.locks:
            return "lost", "no lock"
        try:
            self.locks[name].extend()
        except ExtendUnlockedLock as error:
            return "lost", repr(error)
        return "ok"

    def check(self, name):
        """`locked`: the seconds that are left, or 0."""
        left = self.locks[name].locked() if name in self.locks else 0
        return ("ok", left) if left else ("lost", "0")


speak.speak("library=pottery version=3.0.1 wait=given", Contender())
