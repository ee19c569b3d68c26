"""Log messages, events, errors with their parts, and locks that are handed over or broken."""

import logging
import math
import os
import sys
import threading
import time
import unittest

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lock_metrics import LockMetrics
from redlock import Busy, Config, Error, Lost, Redlock, Unavailable, log_to
from support import NODES, eventually, program

locks = Redlock(NODES, node_timeout=2, label="web-3:4711")
NOWHERE = "redis://127.0.0.1:1"


class Reports(unittest.TestCase):
    def test_busy_names_the_holder_and_its_time(self):
        with locks.lock("report", ttl=60):
            with self.assertRaises(Busy) as busy:
                locks.lock("report", ttl=60, wait=0.2)
        self.assertEqual(busy.exception.label, "web-3:4711")
        self.assertTrue(30 < busy.exception.remaining <= 60)
        self.assertIn("web-3:4711", str(busy.exception))

    def test_busy_tells_a_lock_of_this_program_from_that_of_another_one(self):
        other = Redlock(NODES, node_timeout=2)
        for wait in 0, 0.2:
            with locks.lock("own", ttl=60):
                for asks, own in (locks, True), (other, False):
                    with self.assertRaises(Busy) as busy:
                        asks.lock("own", ttl=60, wait=wait)
                    self.assertEqual(busy.exception.is_own, own)
                    self.assertEqual("this program itself" in str(busy.exception), own)

    def test_too_few_nodes_are_named_one_by_one(self):
        some = Redlock([NODES[0], NOWHERE, "redis://127.0.0.1:2"], node_timeout=2)
        with self.assertRaises(Unavailable) as unavailable:
            some.lock("report", ttl=60, wait=0)
        self.assertEqual([cause.split(" ")[0].rstrip(":") for cause in unavailable.exception.causes],
                         ["127.0.0.1:1", "127.0.0.1:2"])

    def test_log_messages_reach_a_logger(self):
        logger = logging.getLogger("redlock.test")
        logger.setLevel(logging.DEBUG)
        with self.assertLogs(logger, logging.DEBUG) as logs:
            log_to(logger)
            locks.lock("report", ttl=60).release()
            with self.assertRaises(Unavailable):
                Redlock(NOWHERE).lock("report", ttl=60, wait=0)
            eventually(lambda: any(record.levelno == logging.WARNING for record in logs.records))
            log_to(None)
            count = len(logs.records)
            locks.lock("report", ttl=60).release()
            self.assertEqual(len(logs.records), count)
        self.assertTrue(any("acquire" in record.getMessage() for record in logs.records))

    def test_threads_set_the_logger_at_once_and_the_library_calls_none_that_is_freed(self):
        child = program("""
import faulthandler, logging, threading, time
faulthandler.enable()
logger = logging.getLogger("redlock")
logger.addHandler(logging.NullHandler())
logger.setLevel(5)
over = time.monotonic() + 1
def sets(last):
    while time.monotonic() < over:
        log_to(logger)
        log_to(last)
threads = [threading.Thread(target=sets, args=[last]) for last in (logger, None)]
for thread in threads:
    thread.start()
while time.monotonic() < over:
    locks.lock("logged", ttl=60).release()
for thread in threads:
    thread.join()
log_to(logger)
locks.lock("logged", ttl=60).release()
""")
        out, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, out), (0, ""), err)

    def test_events_are_observed(self):
        events = []
        seen = Redlock([*NODES, NOWHERE], node_timeout=2)
        seen.observe(events.append)
        with seen.lock("report", ttl=60) as lock:
            lock.extend(60)
        of_lock = [event for event in events if event.name == "report"]
        self.assertEqual([event.kind for event in of_lock], ["acquired", "extended", "ended"])
        self.assertEqual(of_lock[0].attempts, 1)
        self.assertEqual([event.why for event in of_lock], ["", "", "released"])
        with locks.lock("report", ttl=60):
            self.assertIsNone(seen.try_lock("report", ttl=60))
        self.assertEqual((events[-1].kind, events[-1].why), ("not acquired", "busy"))
        eventually(lambda: any(event.kind == "node away" and event.name == "127.0.0.1:1" for event in events))

    def test_events_become_metrics(self):
        metrics = LockMetrics({"shop:account": 60})
        seen = Redlock([*NODES, NOWHERE], node_timeout=2)
        seen.observe(metrics.observe)
        with seen.lock("shop:account:17", ttl=60) as lock:
            lock.extend(60)
            self.assertIn('redlock_held{lock="shop:account"} 1\n', metrics.text())
        with locks.lock("report", ttl=60):
            self.assertIsNone(seen.try_lock("report", ttl=60))
        for line in ['redlock_acquire_duration_seconds_count{lock="shop:account",result="acquired"} 1',
                     'redlock_acquire_duration_seconds_bucket{lock="shop:account",result="acquired",le="+Inf"} 1',
                     'redlock_acquire_duration_seconds_count{lock="other",result="busy"} 1',
                     'redlock_extensions_total{lock="shop:account",result="extended"} 1',
                     'redlock_extension_slack_ratio_bucket{lock="shop:account",le="1"} 1',
                     'redlock_endings_total{lock="shop:account",how="released"} 1',
                     'redlock_lost_total{lock="other",reason="taken"} 0',
                     'redlock_held{lock="shop:account"} 0']:
            self.assertIn(line + "\n", metrics.text())
        eventually(lambda: 'redlock_node_outages_total{node="127.0.0.1:1"} 1\n' in metrics.text())
        self.assertIn('redlock_node_up{node="127.0.0.1:1"} 0\n', metrics.text())

    def test_a_loss_is_reported_once(self):
        reasons, came = [], threading.Event()

        def on_lost(reason):
            reasons.append(reason)
            came.set()

        lock = locks.lock("report", ttl=6)
        with self.assertRaises(Config):
            lock.on_lost(on_lost)
        lock.keep_alive(1, on_lost=on_lost)
        self.assertTrue(0 < lock.hold_left <= 1)
        self.assertTrue(came.wait(30))
        lock.on_lost(on_lost)  # it is lost already
        with self.assertRaises(Lost) as lost:
            lock.release()
        self.assertEqual((reasons[0], lost.exception.reason), ("hold limit", "hold limit"))
        lock = locks.lock("report", ttl=60, wait=30)
        lock.keep_alive(3600, on_lost=on_lost)
        lock.stop()
        lock.extend(60)
        lock.release()

    def test_a_function_for_events_does_not_end_a_lock_that_is_in_a_call(self):
        seen, texts = Redlock(NODES, node_timeout=2), []

        def end(event):
            if event.kind == "extended":
                for call in lock.release, lock.leak, lambda: lock.leak_for(60):
                    try:
                        call()
                    except Config as error:
                        texts.append(str(error))
                lock.drop()

        seen.observe(end)
        with seen.lock("report", ttl=60) as lock:
            lock.extend(60)
            self.assertEqual(texts, ["a function of this lock must not end it"] * 3)
            self.assertTrue(lock.owned() and locks.locked("report"))
        self.assertFalse(locks.locked("report"))

    def test_a_function_for_a_loss_does_not_end_its_lock_which_waits_for_it(self):
        for how in "lock.on_lost(end)", "lock.on_expiring(60, end)":
            for stop in "lock.stop()", "":  # the interpreter stops it at its end
                with self.subTest(how=how, stop=stop):
                    child = program(f"""
import threading, time
def end(_):
    inside.set()
    while not lock._calls:
        time.sleep(0.001)
    for call in lock.release, lock.leak, lambda: lock.leak_for(1):
        try:
            call()
        except Config as error:
            print(error)
    lock.drop()
inside = threading.Event()
lock = locks.lock("report", ttl=6)
lock.keep_alive(1)
{how}
inside.wait()
{stop}
""")
                    try:
                        out, err = child.communicate(timeout=30)
                    finally:
                        child.kill()
                    self.assertEqual((child.returncode, err), (0, ""))
                    self.assertEqual(out, "a function of this lock must not end it\n" * 3)
                    eventually(lambda: not locks.locked("report"))

    def test_work_is_marked_as_done_for_its_period(self):
        with locks.lock("nightly", ttl=60) as lock:
            self.assertIsNone(locks.last_run("nightly"))
            with self.assertRaises(Config):
                lock.mark_done(5, took=3600)
            self.assertIsNone(locks.last_run("nightly"))
            lock.mark_done(3600, took=5)
        last = locks.last_run("nightly")
        self.assertEqual((last.took, last.label), (5, "web-3:4711"))
        self.assertTrue(3000 < last.again_in <= 3595, last.again_in)
        self.assertLess(abs(time.time() - last.ended), 30)
        with self.assertRaises(Config):
            lock.mark_done(3600, took=5)

    def test_a_lock_is_handed_over_by_its_token(self):
        takes = [
            (lambda: locks.lock("hand", ttl=60), lambda *rest: locks.resume("hand", *rest)),
            (lambda: locks.semaphore("hand:p", 2, ttl=60), lambda *rest: locks.resume_semaphore("hand:p", 2, *rest)),
            (lambda: locks.read_lock("hand", ttl=60, wait=30), lambda *rest: locks.resume_read_lock("hand", *rest)),
            (lambda: locks.write_lock("hand", ttl=60, wait=30), lambda *rest: locks.resume_write_lock("hand", *rest)),
            (lambda: locks.several(["hand", "h2"], ttl=60), lambda *rest: locks.resume_several(["hand", "h2"], *rest)),
        ]
        for take, resume in takes:
            given = take()
            token, remaining = given.token, given.remaining
            self.assertEqual(len(token), 20)
            taken = resume(token, remaining)
            self.assertEqual(given.name, taken.name)
            taken.release()
            with self.assertRaises(Lost):
                given.extend(60)
            given.leak()
            with self.assertRaises(Config):
                given.token
            given = take()
            token, remaining = given.token, given.remaining
            given.leak()
            with resume(token, remaining) as taken:
                taken.extend(60)
        with self.assertRaises(Config):
            locks.resume("hand", b"short", 60)

    def test_whether_a_lock_is_taken_is_unclear_while_the_nodes_are_away(self):
        with self.assertRaises(Unavailable):
            Redlock(NOWHERE).locked("away")

    def test_a_lock_can_be_broken_that_inspect_showed(self):
        lock = locks.lock("break", ttl=600)
        holder = locks.inspect("break").holder
        self.assertTrue(locks.locked("break"))
        self.assertTrue(locks.break_lock("break", holder))
        self.assertFalse(locks.break_lock("break", holder))
        self.assertFalse(locks.locked("break"))
        with self.assertRaises(Lost) as deleted:
            lock.extend(600)
        self.assertEqual((deleted.exception.reason, lock.lost), ("deleted", "deleted"))
        # A lock keeps the reason that was found first.
        lock = locks.lock("break", ttl=600)
        holder = locks.inspect("break").holder
        self.assertTrue(locks.break_lock("break", holder))
        with locks.lock("break", ttl=600), self.assertRaises(Lost) as taken:
            lock.extend(600)
        self.assertEqual((taken.exception.reason, lock.lost), ("taken", "taken"))
        lock = locks.lock("break", ttl=0.3)
        eventually(lambda: lock.lost)
        with self.assertRaises(Lost) as expired:
            lock.keep_alive(600)
        self.assertEqual((expired.exception.reason, lock.lost), ("expired", "expired"))
        lock.drop()

    def test_a_text_that_names_no_holder_or_several_breaks_no_lock(self):
        with locks.read_lock("break:rw", ttl=600) as first, locks.read_lock("break:rw", ttl=600) as second:
            both = locks.inspect("break:rw").holder
            for text, told in (both, "names 2 holders"), ("web-3:4711", "names no holder"), ("", "names no holder"):
                with self.assertRaises(Config) as refused:
                    locks.break_lock("break:rw", text)
                self.assertIn(told, str(refused.exception))
            first.extend(600)
            second.extend(600)
            for line in both.splitlines():
                self.assertTrue(locks.break_lock("break:rw", line))
            first.drop()
            second.drop()

    def test_a_line_that_was_cut_is_not_taken_for_a_holder_that_has_ended(self):
        def refused(text):
            with self.assertRaises(Config) as refused:
                locks.break_lock("break:cut", text)
            self.assertIn("a whole line", str(refused.exception))

        lock = locks.read_lock("break:cut", ttl=600)
        line = locks.inspect("break:cut").holder
        for text in line[:8], line[:-len(" reading")]:
            refused(text)
        lock.extend(600)
        lock.release()
        self.assertFalse(locks.break_lock("break:cut", line))
        permits = [locks.semaphore("break:cut", 20, ttl=600) for _ in range(20)]
        for line in locks.inspect("break:cut").holder.splitlines():
            if line.endswith(" in slot 12"):
                refused(line[:-1])
                self.assertTrue(locks.break_lock("break:cut", line))
        for permit in permits:
            permit.drop()

    def test_a_reader_that_is_not_shown_is_not_taken_for_one_that_has_ended(self):
        long = Redlock(NODES, node_timeout=2, label="w" * 64)
        lock = long.read_lock("break:many", ttl=300)
        line = long.inspect("break:many").holder
        others = [long.read_lock("break:many", ttl=600) for _ in range(600)]
        shown = long.inspect("break:many").holder.splitlines()
        self.assertTrue(400 < len(shown) < 600)
        with self.assertRaises(Config) as refused:
            long.break_lock("break:many", line)
        self.assertIn("not among those", str(refused.exception))
        lock.extend(300)
        self.assertTrue(long.break_lock("break:many", shown[0]))
        for other in [*others, lock]:
            other.drop()
        self.assertFalse(long.break_lock("break:many", line))

    def test_tls_needs_certificates_that_are_some(self):
        for bad in {"ca": "no PEM"}, {"certificate": "no PEM"}, {"key": b"no PEM"}, {"server_name": "a b"}:
            with self.assertRaises(Config):
                Redlock("rediss://127.0.0.1:1", **bad)

    @unittest.skipUnless(os.environ.get("REDLOCK_TEST_TLS"), "no server with TLS was given")
    def test_a_server_over_tls_that_asks_for_a_certificate(self):
        url, *files = os.environ["REDLOCK_TEST_TLS"].splitlines()
        ca, certificate, key = (open(file).read() for file in files)
        over_tls = Redlock(url, ca=ca, certificate=certificate, key=key, node_timeout=2)
        with over_tls.lock("tls", ttl=60):
            self.assertTrue(over_tls.locked("tls"))
        with self.assertRaises(Error):
            Redlock(url, ca=ca, node_timeout=2).lock("tls", ttl=60, wait=0)
        with self.assertRaises(Error):
            Redlock(url, ca=ca, certificate=certificate, key=key, server_name="other.example").connect()


class HandOver(unittest.TestCase):
    def test_a_wait_is_woken_by_the_release_and_not_by_its_next_look(self):
        for fair in False, True:
            with self.subTest(fair=fair):
                times = []
                # Without the message it would take that long.
                mine = Redlock(NODES, node_timeout=2, fair=fair, retry_delay_min=5, retry_delay_max=5)
                for _ in range(5):
                    held = Redlock(NODES, node_timeout=2, fair=fair).lock("hand-over", ttl=60, wait=30)

                    def wait():
                        with mine.lock("hand-over", ttl=60, wait=math.inf):
                            times.append(time.monotonic())

                    thread = threading.Thread(target=wait)
                    thread.start()
                    time.sleep(0.2)
                    released = time.monotonic()
                    held.release()
                    thread.join()
                    times[-1] -= released
                self.assertLess(sorted(times)[2], 1)


if __name__ == "__main__":
    unittest.main()
