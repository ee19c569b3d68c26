"""Signals while a program waits for a lock, and the end of a program whose threads wait."""

import asyncio
import gc
import pickle
import signal
import socket
import threading
import time
import unittest

from redlock import Redlock
from support import NODES, eventually, program, without_heading

locks = Redlock(NODES, node_timeout=2)
# What a signal may take until its handler runs: the issue is 0.25 s, the rest is for a machine with other work.
SOON = 2.5

WAIT = """
import os, signal, time
kind, how = sys.argv[2:4]
def say(line):  # a handler may run within it, which print does not allow
    os.write(1, f"{line}\\n".encode())
def terminate(*_):
    raise SystemExit(3)
def note(*_):
    say("handled")
    if how == "nested":  # a handler can use locks, too
        with locks.lock("signal:other", ttl=60, wait=10) as lock:
            say("nested")
signal.signal(signal.SIGTERM, terminate)
signal.signal(signal.SIGUSR1, note)
locks = Redlock(nodes, node_timeout=2, fair=how == "fair")
take = {
    "lock": lambda wait: locks.lock("signal", ttl=60, wait=wait),
    "read": lambda wait: locks.read_lock("signal", ttl=60, wait=wait),
    "write": lambda wait: locks.write_lock("signal", ttl=60, wait=wait),
    "several": lambda wait: locks.several(["signal", "signal:2"], ttl=60, wait=wait),
    "permit": lambda wait: locks.semaphore("signal:permit", 1, ttl=60, wait=wait),
}[kind]
try:
    say("waits")
    with take(60 if how == "bounded" else float("inf")):
        say("got")
except KeyboardInterrupt:
    say("interrupted")
"""


class Signals(unittest.TestCase):
    def waiting(self, kind, how):
        self.child = program(WAIT, kind, how)
        self.addCleanup(self.child.stdout.close)
        self.addCleanup(self.child.stderr.close)
        self.addCleanup(self.child.kill)
        self.assertEqual(self.child.stdout.readline(), "waits\n")
        # All its threads sleep: the first attempt is over.
        time.sleep(0.3)
        return self.child

    def says(self, line):
        said = self.child.stdout.readline()
        self.assertEqual(said, line, "" if said else self.child.stderr.read())

    def ends(self, code):
        out, err = self.child.communicate(timeout=30)
        self.assertEqual((self.child.returncode, out), (code, ""), err)
        # Nothing was printed by ctypes, either.
        self.assertEqual(err, "")

    def test_ctrl_c_and_sigterm_end_every_wait_soon_and_it_leaves_nothing(self):
        held = [locks.lock("signal", ttl=600), locks.semaphore("signal:permit", 1, ttl=600)]
        kinds = [("lock", "bounded"), ("lock", "endless"), ("lock", "fair"), ("read", "endless"), ("write", "endless"),
                 ("several", "endless"), ("permit", "endless")]
        for kind, how in kinds:
            for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 3)):
                with self.subTest(kind=kind, how=how, signal=number):
                    child = self.waiting(kind, how)
                    began = time.monotonic()
                    child.send_signal(number)
                    if number == signal.SIGINT:
                        self.says("interrupted\n")
                    child.wait(timeout=30)
                    self.assertLess(time.monotonic() - began, SOON)
                    self.ends(code)
        for lock in held:
            lock.release()
        # It waited in no queue that would keep others out.
        locks.lock("signal", ttl=60, wait=0).release()

    def test_a_handler_runs_in_the_middle_of_a_wait_which_goes_on(self):
        for how in "endless", "fair", "nested":
            with self.subTest(how=how):
                held = locks.lock("signal", ttl=600)
                child = self.waiting("lock", how)
                # (A second one could come while the first one has its lock.)
                for _ in range(1 if how == "nested" else 3):
                    began = time.monotonic()
                    child.send_signal(signal.SIGUSR1)
                    self.says("handled\n")
                    self.assertLess(time.monotonic() - began, SOON)
                    if how == "nested":
                        self.says("nested\n")
                held.release()
                self.says("got\n")
                self.ends(0)

    def test_handlers_cost_no_place_in_a_fair_queue(self):
        fair = Redlock(NODES, node_timeout=2, fair=True)
        held, got = fair.lock("signal", ttl=600), []
        first = self.waiting("lock", "fair")

        def second():
            with fair.lock("signal", ttl=60, wait=30):
                got.append("second")

        other = threading.Thread(target=second)
        other.start()
        for _ in range(10):
            first.send_signal(signal.SIGUSR1)
            self.says("handled\n")
        held.release()
        self.says("got\n")
        self.assertLessEqual(len(got), 1)
        self.ends(0)
        other.join()

    def test_ctrl_c_ends_a_wait_for_a_loss(self):
        child = program("""
with locks.lock("signal:kept", ttl=10) as lock:
    lock.keep_alive(3600)
    try:
        print("waits", flush=True)
        lock.wait_lost(600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
""")
        self.assertEqual(child.stdout.readline(), "waits\n")
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.stdout.readline(), "interrupted\n")
        self.assertLess(time.monotonic() - began, SOON)
        self.assertEqual(child.communicate(timeout=30), ("", ""))

    def test_ctrl_c_ends_every_call_that_waits_for_a_connection_soon(self):
        # Connections are taken there, and nothing answers.
        with socket.create_server(("127.0.0.1", 0)) as mute:
            node = f"redis://127.0.0.1:{mute.getsockname()[1]}"
            for call in ("connect()", 'check("probe")', 'check_json("probe")', 'inspect("a")', 'inspect_json("a")', 'locked("a")',
                         'last_run("a")', 'break_lock("a", "1a2b3c4d")', 'try_lock("a", ttl=10)', 'lock("a", ttl=10)'):
                with self.subTest(call=call):
                    child = program("""
mute = Redlock(sys.argv[2], connect_timeout=60)
call = eval(f"lambda: mute.{sys.argv[3]}")
try:
    print("waits", flush=True)
    call()
except KeyboardInterrupt:
    print("interrupted", flush=True)
""", node, call)
                    self.assertEqual(child.stdout.readline(), "waits\n")
                    time.sleep(0.3)
                    began = time.monotonic()
                    child.send_signal(signal.SIGINT)
                    self.assertEqual(child.communicate(timeout=100), ("interrupted\n", ""))
                    self.assertLess(time.monotonic() - began, SOON)


class Loops(unittest.TestCase):
    def test_asyncio_waits_in_a_thread_and_a_lock_that_comes_after_the_cancelling_is_released(self):
        async def work():
            lock = await asyncio.to_thread(locks.lock, "loop", 60, 10)
            waits = asyncio.create_task(asyncio.to_thread(locks.lock, "loop", 60, 30))
            await asyncio.sleep(0.2)
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits
            await asyncio.to_thread(lock.release)

        with self.assertWarnsRegex(ResourceWarning, "the lock 'loop' was thrown away"):
            asyncio.run(work())  # its end waits for the thread
            gc.collect()
        locks.lock("loop", ttl=60, wait=10).release()

    def test_neither_a_client_object_nor_a_lock_is_pickled(self):
        with locks.lock("pickle", ttl=60) as lock:
            for one in locks, lock:
                with self.assertRaises((TypeError, ValueError, AttributeError)):
                    pickle.dumps(one)


class End(unittest.TestCase):
    def test_no_wait_of_a_daemon_thread_outlives_the_interpreter(self):
        for wait in "inf", "600":
            for how in "the interpreter releases it", "a function at exit releases it":
                with self.subTest(wait=wait, how=how):
                    child = program("""
import atexit, threading, time
if sys.argv[3].startswith("a function"):
    atexit.register(lambda: held.release())
held = locks.lock("end", ttl=60)
def wait():
    locks.lock("end", ttl=60, wait=float(sys.argv[2]))
    time.sleep(60)
threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
time.sleep(0.3)
""", wait, how)
                    _, err = child.communicate(timeout=30)
                    self.assertEqual(child.returncode, 0)
                    self.assertNotIn("Error", without_heading(err))
                    self.assertFalse(locks.locked("end"))

    def test_no_function_is_called_when_the_interpreter_is_gone(self):
        # Log lines, events and losses come from threads that the interpreter does not end.
        for _ in range(5):
            child = program("""
import logging, threading, time
logging.basicConfig(level=5, stream=open("/dev/null", "w"))
log_to(logging.getLogger("redlock"))
locks.observe(lambda event: None)
keep = []
def work():
    while True:
        lock = locks.lock(f"gone:{threading.get_ident()}", ttl=0.1)
        lock.keep_alive(0.05, on_lost=lambda reason: None)
        keep.append(lock)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.5)
""")
            out, err = child.communicate(timeout=30)
            self.assertEqual((child.returncode, out), (0, ""), err)

    def test_a_forked_child_waits_and_ends_by_itself(self):
        child = program("""
import os
held = locks.lock("forked", ttl=60)
process = os.fork()
if process == 0:
    try:
        locks.lock("forked", ttl=60, wait=0.2)
    except Busy:
        pass  # the copy of the lock that it has is not its own
    try:
        held.leak()
    except Lost as lost:
        sys.exit(7 if lost.reason == "other process" else 8)
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
held.release()
""")
        out, err = child.communicate(timeout=30)
        self.assertEqual((child.returncode, out, err), (0, "7\n", ""))
        eventually(lambda: not locks.locked("forked"))

    def test_a_forked_child_ends_its_copy_though_a_thread_of_its_parent_was_in_a_call(self):
        child = program("""
import os, threading, time, warnings
warnings.simplefilter("ignore")  # there are threads
held = locks.lock("forked", ttl=60)
held.keep_alive(600)
def waits():
    try:
        held.wait_lost(60)
    except Error:
        pass
thread = threading.Thread(target=waits)
thread.start()
for _ in range(3):
    while not held._calls:
        time.sleep(0.001)
    process = os.fork()
    if process == 0:
        held.drop()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)  # the next child must not write it again
print(held.owned())
held.release()
thread.join()
""")
        try:
            out, err = child.communicate(timeout=30)
        finally:
            child.kill()
        self.assertEqual((child.returncode, out, err), (0, "7\n7\n7\nTrue\n", ""))


if __name__ == "__main__":
    unittest.main()
