"""Nodes for these tests: three servers of their own, or those that REDLOCK_TEST_NODES names."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time


def _start():
    directory = tempfile.mkdtemp(prefix="redlock-py.")
    servers = []

    def stop():
        for server in servers:
            server.kill()
            server.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    sockets = [f"{directory}/{number}" for number in range(3)]
    for socket in sockets:
        command = [os.environ.get("REDIS_SERVER", "redis-server"), "--port", "0", "--unixsocket", socket, "--save", "",
                   "--dir", directory, "--logfile", f"{socket}.log"]
        servers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
    for socket in sockets:
        eventually(lambda: os.path.exists(socket))
    return [f"unix://{socket}" for socket in sockets]


def eventually(condition):
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("not in time")
        time.sleep(0.002)


def without_heading(err):
    """Python 3.9 puts this above an exception at the end of a program."""
    return err.replace("Error in atexit._run_exitfuncs:", "")


def program(text, *arguments, **how):
    """A Python program of its own. It has `locks`, and Ctrl-C ends it also where that is ignored, as behind nohup."""
    beginning = """
import signal, sys
from redlock import *
signal.signal(signal.SIGINT, signal.default_int_handler)
nodes = sys.argv[1].split()
locks = Redlock(nodes, node_timeout=2)
"""
    return subprocess.Popen([sys.executable, "-B", "-c", beginning + text, " ".join(NODES), *arguments],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


NODES = os.environ.get("REDLOCK_TEST_NODES", "").split() or _start()
