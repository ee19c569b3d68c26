"""`etcdctl lock` in a process for each lock, as a script uses it. It waits without end: the caller ends it, as `timeout` would."""

import ctypes
import math
import select
import signal
import subprocess
import threading

import speak

ENDPOINTS = ",".join(speak.nodes())
LIBC = ctypes.CDLL(None)


def ends_with_its_parent():
    LIBC.prctl(1, signal.SIGKILL)


def etcdctl(*args):
    command = ["etcdctl", "--endpoints", ENDPOINTS, *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ends_with_its_parent)


class Contender:
    def __init__(self):
        self.locks = {}

    def acquire(self, name, ttl, wait):
        process = etcdctl("lock", "--ttl", str(math.ceil(ttl / 1000)), name)
        readable, _, _ = select.select([process.stdout], [], [], wait / 1000)
        if not readable:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                process.kill()
            return "busy", "no answer within the wait"
        key = process.stdout.readline().strip()
        if not key:
            return "failed", process.communicate()[1]
        self.locks[name] = (process, key)
        threading.Thread(target=self.watch, args=(name, process), daemon=True).start()
        return "ok", "left=kept"

    def watch(self, name, process):
        process.wait()
        if self.locks.get(name, (None,))[0] is process:
            speak.say("gone name=%s end=%d text=it has ended" % (name, speak.now()))

    def release(self, name):
        if name not in self.locks:
            return "lost", "no lock"
        process, _ = self.locks.pop(name)
        if process.poll() is not None:
            return "lost", process.stderr.read()
        process.send_signal(signal.SIGINT)
        process.wait()
        return "ok" if process.returncode == 0 else ("failed", process.stderr.read())

    def check(self, name):
        held = name in self.locks and self.locks[name][0].poll() is None
        return ("ok", "left=kept") if held else ("lost", "it has ended")

    def fence(self, name):
        """The revision at which the lock's key was made."""
        if name not in self.locks:
            return "lost", "no lock"
        out, errors = etcdctl("get", "-w", "fields", self.locks[name][1]).communicate()
        for line in out.splitlines():
            if line.startswith('"CreateRevision" : '):
                return "ok", "number=" + line.rpartition(" ")[2]
        return ("failed", errors) if errors else ("lost", "no key")


speak.speak("library=etcdctl version=3.4.23 wait=given leased=yes", Contender())
