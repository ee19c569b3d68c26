"""The Lock of kazoo, on ZooKeeper. A session lives for the ttl, which is why there is one for each ttl; kazoo renews it by itself."""

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import LockTimeout

import speak


class Contender:
    def __init__(self):
        self.sessions = {}
        self.locks = {}

    def session(self, ttl, wait):
        if ttl not in self.sessions:
            client = KazooClient(hosts=",".join(speak.nodes()), timeout=ttl / 1000)
            client.add_listener(lambda state: self.changed(client, state))
            try:
                client.start(timeout=wait / 1000)
            except Exception:
                client.stop()
                client.close()
                raise
            self.sessions[ttl] = client
        return self.sessions[ttl]

    def changed(self, client, state):
        """As its documents say: without a connection a lock may be lost, and with a new session it is."""
        if state == KazooState.CONNECTED:
            return
        for name, (lock, _) in list(self.locks.items()):
            if lock.client is client:
                if state == KazooState.LOST:
                    self.locks[name] = (lock, True)
                speak.say("gone name=%s end=%d text=%s" % (name, speak.now(), state))

    def acquire(self, name, ttl, wait):
        lock = self.session(ttl, wait).Lock("/" + name)
        try:
            if not lock.acquire(timeout=wait / 1000):
                return "busy", "False"
        except LockTimeout as error:
            return "busy", str(error)
        self.locks[name] = (lock, False)
        return "ok", "left=kept"

    def release(self, name):
        if name not in self.locks:
            return "lost", "no lock"
        lock, lost = self.locks.pop(name)
        lock.release()
        return ("lost", "LOST") if lost else "ok"

    def check(self, name):
        lock, lost = self.locks.get(name, (None, True))
        if lost or not lock.is_acquired:
            return "lost", "LOST"
        held = lock.client.state == KazooState.CONNECTED
        return ("ok", "left=kept") if held else ("failed", lock.client.state)

    def fence(self, name):
        """The transaction that has made the lock's node."""
        if name not in self.locks:
            return "lost", "no lock"
        lock, _ = self.locks[name]
        _, stat = lock.client.get(lock.path + "/" + lock.node)
        return "ok", "number=%d" % stat.czxid


speak.speak("library=kazoo version=2.11.0 wait=given leased=yes", Contender())
