from redlock import Redlock

import speak


class Contender:
    def __init__(self):
        self.manager = Redlock(speak.nodes())
        self.locks = {}

    def acquire(self, name, ttl, wait):
        lock = self.manager.lock(name, ttl)
        if not lock:
            return "busy", "False"
        self.locks[name] = lock
        return "ok", lock.validity / 1000

    def release(self, name):
        if name not in self.locks:
            return "lost", "no lock"
        self.manager.unlock(self.locks.pop(name))
        return "ok"


# Three tries, 200 ms after each.
speak.speak("library=redlock-py version=1.0.8 wait=600", Contender())
