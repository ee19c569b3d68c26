"""Locks, from their acquisition to their end.

Where COMMAND is set, it is the path of the command `redlock`; otherwise the one beside this Python is used, if it is there.
"""

import copy
import gc
import json
import math
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import unittest
import warnings

from redlock import Busy, Config, Error, ExtensionLimit, Inspection, Lock, Lost, OtherKind, Redlock, TooSlow, Unavailable
from support import NODES, eventually


def raises(expected, call):
    try:
        call()
    except Error as error:
        assert type(error) is expected and str(error), repr(error)
        return error
    raise AssertionError(f"no {expected}")


locks = Redlock(NODES, node_timeout=2, wait=30, max_extensions=2)
COMMAND = os.environ.get("COMMAND") or os.path.join(os.path.dirname(sys.executable), "redlock")


def steady(value):
    """Without what changes from one moment to the next."""
    if isinstance(value, list):
        return [steady(item) for item in value if not (isinstance(item, dict) and item.get("code") in ("latency", "clock"))]
    if isinstance(value, dict):
        momentary = ("remaining_ms", "held_s", "longest_wait_s", "uptime_s", "round_trip_us", "clock_offset_ms")
        return {key: item is None if key in momentary else steady(item) for key, item in value.items()}
    if isinstance(value, str):
        # Each names the option as it is given there.
        value = value.replace("--restart-guard", "restart_guard")
        return re.sub("[0-9]+ [a-z]+", "time", value)
    return value


def of_command(nodes, *arguments):
    environment = {**os.environ, "REDLOCK_NODES": ",".join(nodes)}
    command = [COMMAND, *arguments, "--json", "--node-timeout", "2s"]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def enter(lock):
    with lock:
        raise AssertionError("this is not protected")


def enter_nothing(call):
    """The name of the error, if there is one."""
    try:
        call()
        return None
    except Error as error:
        return type(error).__name__


class Locks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        locks.connect()

    def test_values_that_cannot_work_are_refused(self):
        with self.assertRaises(TypeError):
            Redlock(NODES, no_such_option=1)
        with self.assertRaises(TypeError):  # a second node is no library
            Redlock(NODES[0], NODES[1])
        raises(Config, lambda: Redlock(NODES, node_timeout=0))
        raises(Config, lambda: Redlock([]))
        # One text may have several nodes, as a variable has them.
        assert "nodes 0 and 1" in str(raises(Config, lambda: Redlock(f"{NODES[0]},{NODES[0]}")))
        Redlock(",".join(NODES), node_timeout=2).connect()
        # C would take them to that character: another node, or a label that is cut.
        for ends in (lambda: Redlock("redis://:hunter2\0@h"), lambda: Redlock(NODES, label="a\0b"),
                     lambda: Redlock(NODES, prefix="a\0"), lambda: Redlock("rediss://h", server_name="h\0"),
                     lambda: locks.break_lock("a", "1a2b3c4d\0")):
            error = str(raises(Config, ends))
            assert "NUL" in error and "hunter2" not in error, error
        with self.assertRaises(TypeError):  # as a size it would make so many zeros
            locks.lock(17, ttl=60)
        raises(Config, lambda: locks.lock("", ttl=60))
        raises(Config, lambda: locks.lock("größe", ttl=-1))
        for option in ["wait", "retry_delay_min", "retry_delay_max", "node_timeout", "connect_timeout", "max_extensions",
                       "restart_guard", "fair"]:
            Redlock(NODES, **{option: 1})
        try:
            Redlock(NODES, library="no/such.so")
            raise AssertionError("there is no such library")
        except OSError as error:
            assert "no/such.so" in str(error) and "as `library`" in str(error), error

    def test_a_lock_is_seen_with_its_label_and_behind_its_prefix(self):
        events = []
        seen = Redlock(NODES, node_timeout=2, label="web-3", prefix="team:")
        seen.observe(events.append)
        with seen.lock("seen", ttl=60):
            found = seen.inspect("seen")
            assert found.state == "held" and found.holder.endswith(" (web-3)") and 30 < found.remaining <= 60, found
            assert locks.inspect("seen") == Inspection("free", None, "", 0)
            assert locks.inspect("team:seen").state == "held"
            raises(Busy, lambda: seen.lock("seen", ttl=60, wait=0))
        kinds = [event.kind for event in events if event.name == "seen"]
        assert kinds == ["acquired", "not acquired", "ended"], events
        report = seen.check("check")
        assert report.fit and "appendonly" in report.findings, report
        assert Redlock(NODES[0]).inspect("seen").state == "free"

    def test_those_that_wait_are_in_the_document_with_their_labels(self):
        def waiting():
            found = locks.inspect_json("waited for")
            return found["waiting"], found["waiting_labels"]

        waits = Redlock(NODES, node_timeout=2, wait=30, label="web-2:4711")
        with locks.lock("waited for", ttl=60):
            assert waiting() == (0, []), waiting()
            thread = threading.Thread(target=lambda: waits.lock("waited for", ttl=60).release())
            thread.start()
            eventually(lambda: waiting() == (1, ["web-2:4711"]))
        thread.join()

    @unittest.skipUnless(os.path.exists(COMMAND), "the command `redlock` is not beside this Python")
    def test_the_documents_for_programs_are_those_of_the_command(self):
        seen = Redlock(NODES, node_timeout=2, label="web-3", prefix="team:")
        odd = b'gr\xc3\xb6\xc3\x9fe "\\\n\x1b\xff'
        kinds = [seen.semaphore("documents", 2, ttl=60), seen.semaphore("documents", 2, ttl=60), seen.read_lock("read", ttl=60),
                 locks.lock(odd, ttl=60)]
        # Nodes that all answer, one that does not, and no other.
        for nodes in NODES, [*NODES, "redis://127.0.0.1:1"], ["redis://127.0.0.1:1"]:
            looks = Redlock(nodes, node_timeout=2)
            for name in "free", "team:documents", "team:read", odd:
                found, expected = looks.inspect_json(name), of_command(nodes, "inspect", name)
                assert steady(found) == steady(expected), (found, expected)
                seen_here = looks.inspect(name)
                assert (seen_here.state, seen_here.kind) == (found["state"], found["kind"]), (seen_here, found)
            found, expected = looks.check_json("probe"), of_command(nodes, "doctor", "--probe", "probe")
            assert steady(found) == steady(expected), (found, expected)
        found = seen.inspect_json("documents")
        assert [holder["slot"] for holder in found["holders"]] == [0, 1], found
        assert 30_000 < found["holders"][0]["remaining_ms"] <= 60_000, found
        for lock in kinds:
            lock.release()
        raises(Config, lambda: locks.inspect_json(""))
        raises(Config, lambda: locks.check_json(""))

    def test_a_lock_can_be_asked_and_extended(self):
        with locks.lock("größe", ttl=60) as lock:
            assert 50 < lock.remaining < 60 and lock.lost is None and lock
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

    def test_of_threads_that_end_a_lock_at_once_one_does(self):
        for _ in range(200):
            lock, together, refused = locks.lock("shared", ttl=60), threading.Barrier(4), []

            def end():
                together.wait()
                try:
                    lock.release()
                except Config as error:
                    refused.append(error)

            threads = [threading.Thread(target=end) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(refused) == 3 and locks.inspect("shared").state == "free"

    def test_a_lock_that_was_ended_before_is_not_reported_as_held_to_its_end(self):
        for end in Lock.release, Lock.leak, lambda lock: lock.leak_for(0):
            lock = locks.lock("shared", ttl=60)
            lock.leak_for(0)
            assert "released or left before" in str(raises(Config, lambda: end(lock)))
            lock.drop()
        # At the end of a `with` that was the intention.
        with locks.lock("shared", ttl=60) as lock:
            lock.release()
        # Another thread may have just begun to end it.
        with locks.lock("shared", ttl=60) as lock:
            lock._ender["handle"] = lock._handle
        lock._ender.clear()
        lock.release()

    def test_a_lock_is_ended_once_also_if_two_threads_take_turns_at_any_step(self):
        step = steps = 1
        while steps >= step:
            lock, steps, ends, refused = locks.lock("shared", ttl=60), 0, [], []
            library = lock._library

            class Once:
                """The library, which is asked to end this lock once."""

                @staticmethod
                def redlock_lock_release(handle):
                    ends.append(handle.value)
                    if len(ends) == 1:
                        library.redlock_lock_release(handle)

            def end():
                try:
                    lock.release()
                except Config as error:
                    refused.append(error)

            def trace(frame, event, _argument):
                nonlocal steps
                if frame.f_code is not Lock._taken.__code__:
                    return None
                frame.f_trace_opcodes = True
                if event == "opcode":
                    steps += 1
                    if steps == step:
                        other = threading.Thread(target=end)
                        other.start()
                        other.join()
                return trace

            lock._library = Once
            sys.settrace(trace)
            try:
                end()
            finally:
                sys.settrace(None)
            assert len(ends) == 1 and len(refused) == (steps >= step), (step, ends, refused)
            assert not lock._handle and locks.inspect("shared").state == "free"
            step += 1
        assert step > 10, step

    def test_a_lock_is_not_ended_while_another_thread_is_in_a_call_with_it(self):
        lock = locks.lock("shared", ttl=60)
        lock.keep_alive(60)
        library, inside, go_on, ended = lock._library, threading.Event(), threading.Event(), threading.Event()

        class Slow:
            """The library, whose `ensure` takes long."""

            def __getattr__(self, name):
                function = getattr(library, name)
                if name != "redlock_lock_ensure":
                    return function

                def slowly(*arguments):
                    inside.set()
                    go_on.wait()
                    assert not ended.is_set()
                    return function(*arguments)
                return slowly

        lock._library = Slow()
        results = []
        user = threading.Thread(target=lambda: results.append(enter_nothing(lambda: lock.ensure(0))))
        user.start()
        inside.wait()

        def end():
            lock.release()
            ended.set()

        ender = threading.Thread(target=end)
        ender.start()
        assert not ended.wait(0.2)
        go_on.set()
        user.join()
        ender.join()
        assert results[0] in (None, "Config") and ended.is_set(), results
        assert locks.inspect("shared").state == "free"

    def test_neither_a_lock_nor_its_client_can_be_copied(self):
        with locks.lock("copied", ttl=60) as lock:
            for copied in copy.copy, copy.deepcopy, pickle.dumps:
                for thing in lock, locks:
                    with self.assertRaises(TypeError) as raised:
                        copied(thing)
                    assert "cannot be copied or pickled" in str(raised.exception), raised.exception
            gc.collect()
            lock.ensure(0)
            assert locks.inspect("copied").state == "held"

    def test_semaphores_read_write_locks_and_several_names(self):
        with locks.semaphore("pool", 2, ttl=60) as one, locks.semaphore("pool", 2, ttl=60, wait=0) as two:
            assert {one.slot, two.slot} == {0, 1}
            raises(Busy, lambda: locks.semaphore("pool", 2, ttl=60, wait=0))
            assert "in use as a semaphore" in str(raises(OtherKind, lambda: locks.read_lock("pool", ttl=60)))
        raises(Config, lambda: locks.semaphore("pool", 0, ttl=60))
        with locks.read_lock("rw", ttl=60) as one, locks.read_lock("rw".encode(), ttl=60):
            assert one.slot is None
            raises(Busy, lambda: locks.write_lock("rw", ttl=60, wait=0))
        locks.write_lock("rw", ttl=60).release()
        with locks.several(["größe", b"other"], ttl=60):
            assert locks.try_lock("größe", ttl=60) is None and locks.try_lock("other", ttl=60) is None
        raises(Config, lambda: locks.several([], ttl=60))
        with locks.several("größe", ttl=60):  # one name, not its letters
            assert locks.try_lock("größe", ttl=60) is None

    def test_numbers_times_and_names_that_cannot_work_are_config_and_none_is_cut(self):
        for permits in 2**32 + 1, 2**64 + 1, -1:
            raises(Config, lambda: locks.semaphore("pool", permits, ttl=60))
            raises(Config, lambda: locks.resume_semaphore("pool", permits, b"t" * 20, 60))
        for permits in "3", 2.0:
            with self.assertRaises(TypeError):
                locks.semaphore("pool", permits, ttl=60)
        for extensions in 2**64 + 1, 2**64, -1:
            raises(Config, lambda: Redlock(NODES, max_extensions=extensions))
        for name in "a\udcff", b"a\xff".decode(errors="surrogateescape"):
            assert "UTF-8" in str(raises(Config, lambda: locks.lock(name, ttl=60)))
            raises(Config, lambda: locks.several(["a", name], ttl=60))
            raises(Config, lambda: Redlock(NODES, label=name))
        for wait in math.nan, -1:
            raises(Config, lambda: locks.lock("timed", ttl=60, wait=wait))
        # So long that they are without an end.
        for wait in sys.float_info.max, 1e306, 10**400, 2**64 / 1000, math.inf:
            with locks.lock("timed", ttl=60, wait=wait) as lock:
                raises(TooSlow, lambda: lock.ensure(wait))
        with Redlock(NODES, node_timeout=2, wait=None).lock("timed", ttl=3) as lock:
            lock.keep_alive(3600)
            for timeout in math.nan, -1:
                raises(Config, lambda: lock.wait_lost(timeout))
            assert locks.break_lock("timed", locks.inspect("timed").holder)
            raises(Lost, lambda: lock.wait_lost(10**400))
            lock.drop()

    def test_a_time_is_rounded_to_the_side_that_is_safe(self):
        lock = locks.lock("rounded", ttl=60)
        asked = []
        lock._call = lambda name, *arguments: asked.append(arguments)
        for time_ in 0.0004, 1.0004, 1:
            lock.ensure(time_)
        self.assertEqual(asked, [(1,), (1001,), (1000,)])
        del lock._call
        with locks.resume("rounded", lock.token, 1.9999) as resumed:
            lock.leak()
            self.assertLessEqual(resumed.remaining, 1.999)

    def test_a_wait_without_an_end_while_other_threads_wait(self):
        lock = locks.lock("größe", ttl=60, wait=math.inf)
        others = [threading.Thread(target=lambda: locks.lock("größe", ttl=60, wait=math.inf).release()) for _ in range(3)]
        for other in others:
            other.start()
        lock.release()
        for other in others:
            other.join()

    def test_the_end_of_the_ttl_is_a_loss_that_the_end_of_the_with_reports(self):
        def expire():
            with locks.lock("short", ttl=0.5) as lock:
                time.sleep(1)
                assert lock.lost == "expired" and lock.remaining == 0 and not lock.owned() and not lock

        raises(Lost, expire)

    def test_a_with_protects_from_its_first_line_to_its_last_or_raises_before_the_first(self):
        takes = [lambda: locks.lock("once", ttl=60), lambda: locks.semaphore("once", 2, ttl=60), lambda: locks.read_lock("once", ttl=60),
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

    def test_an_exception_of_the_work_is_not_hidden_and_the_lock_is_released(self):
        try:
            with locks.lock("größe", ttl=60):
                raise KeyError
        except KeyError:
            locks.try_lock("größe", ttl=60).release()

    def test_a_lock_that_is_kept_alive_is_renewed_beyond_its_ttl_and_no_longer_than_its_bound(self):
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

    def test_a_lock_that_is_thrown_away_is_released_with_a_warning(self):
        for throw_away in (lambda: locks.lock("thrown", ttl=60) and None, lambda: locks.try_lock("thrown", ttl=60) and None):
            with self.assertWarnsRegex(ResourceWarning, "the lock 'thrown' was thrown away while it was held"):
                throw_away()
                gc.collect()
            locks.lock("thrown", ttl=60, wait=30).release()
        # All other ends have none.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with locks.lock("thrown", ttl=60):
                pass
            locks.lock("thrown", ttl=60).release()
            locks.lock("thrown", ttl=60).leak_for(0)
            with locks.lock("thrown", ttl=60):
                raises(Busy, lambda: locks.lock("thrown", ttl=60, wait=0))
            gc.collect()
        self.assertEqual([str(warning.message) for warning in caught], [])

    def test_a_lock_that_is_thrown_away_is_released_where_warnings_are_errors(self):
        # The interpreter shows an exception in such a place, and goes on.
        shown, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                locks.lock("thrown", ttl=60)
                locks.lock("thrown", ttl=60, wait=30).release()
        finally:
            sys.unraisablehook = shown

    def test_an_error_keeps_no_lock_alive(self):
        with locks.lock("taken", ttl=60), warnings.catch_warnings():
            warnings.simplefilter("ignore")

            def work():
                thrown = locks.lock("thrown", ttl=60)
                locks.lock("taken", ttl=60, wait=0)
                thrown.release()

            gc.disable()
            try:
                raises(Busy, work)
                locks.lock("thrown", ttl=60, wait=30).release()
            finally:
                gc.enable()

    def test_a_lock_that_is_thrown_away_in_its_own_function_is_released(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            held = {"lock": locks.lock("thrown", ttl=2)}
            held["lock"].keep_alive(1)
            held["lock"].on_lost(lambda _: held.clear())
            held["lock"].on_lost(lambda _: held.clear())
            eventually(lambda: not held)
            held["lock"] = locks.lock("thrown", ttl=60, wait=30)
            held["lock"].keep_alive(3600)
            # More than is ever left, so it is called at once.
            held["lock"].on_expiring(3600, lambda _: held.clear())
            eventually(lambda: not held)
            locks.lock("thrown", ttl=60, wait=30).release()

    def test_a_lock_that_is_left_stays_taken(self):
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

    def test_nodes_that_are_not_there(self):
        nowhere = Redlock(["redis://127.0.0.1:1"])
        error = raises(Unavailable, nowhere.connect)
        assert not error.permanent and error.retry_after == 0
        assert issubclass(Config, ValueError)
        self.assertEqual(len(error.causes), 1)
        self.assertIn("127.0.0.1:1", error.causes[0])

    def test_a_lock_may_outlive_the_client_object_that_it_came_from(self):
        other = Redlock(NODES, node_timeout=2)
        lock = other.lock("größe", ttl=60)
        del other
        gc.collect()
        lock.release()


if __name__ == "__main__":
    unittest.main()
