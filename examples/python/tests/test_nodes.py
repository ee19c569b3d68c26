"""The module `redlock.testing`: how a program's unit tests use it."""

import gc
import threading
import unittest
import warnings
import weakref

from redlock import Busy, Config, Lost, Redlock, Unavailable, _client, _lock
from redlock.testing import REQUESTS, Node
from support import program, without_heading

try:
    Node().close()
except OSError as error:
    raise unittest.SkipTest(str(error))


def nightly(locks, sent):
    """The code under test."""
    lock = locks.try_lock("shop:nightly", ttl=60)
    if lock is None:
        return "left to another host"
    with lock:
        sent.append("report")
        lock.extend(60)
    return "done"


class Nightly(unittest.TestCase):
    def setUp(self):
        self.nodes = [Node() for _ in range(3)]
        self.locks = Redlock([node.url for node in self.nodes], node_timeout=0.5)
        self.sent = []

    def tearDown(self):
        for node in self.nodes:
            node.close()

    def all(self, method, *arguments):
        for node in self.nodes:
            getattr(node, method)(*arguments)

    def test_one_host_does_it(self):
        self.assertEqual(nightly(self.locks, self.sent), "done")
        self.assertEqual(self.sent, ["report"])
        # The answers of two of three nodes are enough: the last node may not have taken in its request yet.
        for request in "acquire", "extend":
            asked = sum(node.requests(request) for node in self.nodes)
            self.assertTrue(2 <= asked <= 3, f"{request}: {asked}")

    def test_another_host_has_it(self):
        self.all("hold", "shop:nightly", "web-3:4711", 60)
        self.assertEqual(self.nodes[0].label("shop:nightly"), "web-3:4711")
        self.assertTrue(30 < self.nodes[0].held("shop:nightly") <= 60)
        self.assertEqual(nightly(self.locks, self.sent), "left to another host")
        self.all("advance", 61)
        self.assertEqual(nightly(self.locks, self.sent), "done")

    def test_a_lock_that_cannot_be_looked_at_is_not_reported_as_gone(self):
        self.locks.connect()
        self.locks.lock("shop:nightly", ttl=60).leak()
        holder = self.locks.inspect("shop:nightly").holder
        self.all("refuse", "NOPERM No permissions to access a key")
        with self.assertRaises(Unavailable) as refused:
            self.locks.break_lock("shop:nightly", holder)
        self.assertIn("NOPERM", str(refused.exception))
        self.assertTrue(refused.exception.permanent)

    def test_it_is_lost_in_the_middle(self):
        node, test = self.nodes[0], self

        class Slow(list):
            def append(self, _):
                test.all("hold", "shop:nightly")

        with self.assertRaises(Lost):
            nightly(self.locks, Slow())
        self.assertEqual(node.waiting("shop:nightly"), 0)
        self.assertTrue(node.release("shop:nightly"))
        self.assertFalse(node.release("shop:nightly"))

    def test_a_renewal_that_fails_is_known_before_the_loss(self):
        seen, came = [], threading.Event()
        lock = self.locks.lock("shop:nightly", ttl=6)
        with self.assertRaises(Config):
            lock.on_expiring(3, seen.append)
        self.assertEqual(lock.since_renewal, 0)
        lock.keep_alive(3600)
        lock.on_expiring(3, lambda left: (seen.append(left), came.set()))
        self.all("be_silent")
        self.assertTrue(came.wait(30))
        self.assertTrue(0 < seen[0] <= 3 and lock.owned())
        self.assertGreater(lock.since_renewal, 2)
        self.all("recover")
        lock.release()

    def test_the_nodes_are_away(self):
        for fault in ("be_silent", "go_down"):
            self.all(fault)
            with self.assertRaises(Unavailable):
                nightly(self.locks, self.sent)
        self.all("recover")
        self.all("refuse", "NOPERM this user has no permissions")
        with self.assertRaises(Unavailable):
            self.locks.lock("shop:nightly", ttl=60, wait=10)
        self.all("recover")
        self.nodes[2].answer_late(5)
        self.all("close_connections")
        self.all("forget")
        self.locks.lock("shop:nightly", ttl=60, wait=20).release()

    def test_all_locks_are_held(self):
        self.all("hold_all")
        with self.assertRaises(Busy):
            self.locks.lock("any", ttl=60, wait=0.1)
        self.all("release_all")
        self.locks.lock("any", ttl=60, wait=10).release()

    def test_values_that_cannot_work(self):
        node = self.nodes[0]
        for bad in (lambda: node.hold(""), lambda: node.hold("a", "a\nb"), lambda: node.requests("no")):
            with self.assertRaises(Config):
                bad()
        self.assertTrue(all(node.requests(kind) >= 0 for kind in REQUESTS))
        node.close()
        with self.assertRaises(Config):
            node.url


class Fork(unittest.TestCase):
    def test_a_forked_child_does_not_end_its_parent_s_node(self):
        child = program("""
import os, warnings
from redlock.testing import Node
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, from Python 3.12 on
node = Node()
locks = Redlock(node.url, node_timeout=2)
away = []
locks.observe(lambda event: event.kind == "node away" and away.append(event))
lock = locks.lock("forked", ttl=60)
for ends in lambda: sys.exit(7), node.close:
    process = os.fork()
    if process == 0:
        ends()
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)  # the next child must not write it again
lock.extend(60)
lock.release()
print(node.requests("connections"), away)
""")
        try:
            out, err = child.communicate(timeout=30)
        finally:
            child.kill()
        self.assertEqual((child.returncode, out, err), (0, "7\n7\n1 []\n", ""))


class Thrown(unittest.TestCase):
    def test_an_exception_of_a_signal_handler_frees_no_function_and_leaves_no_lock(self):
        child = program("""
import faulthandler, random, time, warnings
from redlock.testing import Node
faulthandler.enable()
warnings.simplefilter("ignore")
sys.unraisablehook = lambda _: None
node, armed, interrupted, left = Node(), False, 0, set()
locks = Redlock(node.url, node_timeout=1, wait=1)
class Stop(BaseException):
    pass
def stop(*_):
    global interrupted
    if armed:
        interrupted += 1
        raise Stop
signal.signal(signal.SIGALRM, stop)
def throws_away(name):
    lock = locks.lock(name, ttl=0.5)
    lock.keep_alive(0.3, on_lost=lambda reason: None)
random.seed(17)
over, number = time.monotonic() + 2, 0
while time.monotonic() < over:
    number += 1
    name = f"thrown:{number}"
    try:
        armed = True
        # A few microseconds are enough where it is freed.
        signal.setitimer(signal.ITIMER_REAL, random.random() * 0.0012 + 1e-5)
        throws_away(name)
        armed = False
    except Stop:
        armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    if node.held(name):
        left.add(name)
time.sleep(1)  # what is left is lost, and its function called
print(interrupted > 100, len(left) < interrupted / 50)
""")
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out), (0, "True True\n"), err)

    def test_a_function_that_refers_to_its_lock_or_client_keeps_neither(self):
        with Node() as node, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            locks = Redlock(node.url, node_timeout=2)
            locks.observe(lambda event: locks)
            lock = locks.lock("kept", ttl=60)
            lock.keep_alive(3600, on_lost=lambda reason: lock)
            lock.on_expiring(20, lambda left: lock)
            gone = weakref.ref(locks)
            del lock, locks
            gc.collect()
            self.assertEqual((node.held("kept"), gone()), (0, None))
            self.assertEqual((_lock._called_back, _client._observers), ({}, {}))


class End(unittest.TestCase):
    def test_a_signal_at_the_end_of_the_interpreter_leaves_no_function_registered(self):
        child = program("""
import os, threading, time
from redlock import _waiting
from redlock.testing import Node
node = Node()
locks = Redlock(node.url, node_timeout=2)
events = []
waits_for_threads, interrupts = _waiting.ending.changed.wait, []
def interrupted():
    if not interrupts:
        interrupts.append(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    waits_for_threads()
_waiting.ending.changed.wait = interrupted
def registers():
    while True:
        kept.on_lost(lambda reason: None)
        time.sleep(0.1)
held = locks.lock("held", ttl=60)
kept = locks.lock("kept", ttl=2)
kept.keep_alive(1.5, on_lost=lambda reason: None)
locks.observe(events.append)
for function in registers, lambda: locks.lock("held", ttl=60, wait=float("inf")):
    threading.Thread(target=function, daemon=True).start()
time.sleep(0.3)
class Slow:
    \"\"\"The loss comes while it ends.\"\"\"
    def __del__(self, sleep=time.sleep, write=os.write, events=events):
        before = len(events)
        sleep(2.5)
        write(1, b"%d\\n" % (len(events) - before))
sys.slow = Slow()
sys.kept = kept, held, locks, node  # not dropped before
""")
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out), (0, "0\n"), err)
        self.assertIn("KeyboardInterrupt", err)
        self.assertNotIn("Error", without_heading(err))


if __name__ == "__main__":
    unittest.main()
