"""The lines that a contender speaks on standard input and output: see tests/peers/README.md."""

import os
import sys
import time


def nodes():
    """The addresses of the nodes."""
    return os.environ["NODES"].split(",")


def now():
    """Microseconds of the monotonic clock, which all processes of a machine share."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer(contender, words):
    """Returns a word and a text, from a call that may return just the word, or `("ok", seconds left)`."""
    what, name, *rest = words
    if what == "write":
        return "ok"
    if what == "wall":
        return "ok", "number=%d" % (time.time() * 1000)
    call = getattr(contender, what, None)
    if call is None:
        return "none"
    ms = [int(word) for word in rest if word]
    try:
        if what == "acquire":
            return call(name, ms[0], ms[1])
        return call(name, ms[0]) if what == "extend" else call(name)
    except Exception as error:  # what a library raises is what it says
        return "failed", "%s: %s" % (type(error).__name__, error)


def speak(ready, contender):
    say("ready " + ready)
    for line in sys.stdin:
        begin = now()
        said = answer(contender, line.rstrip("\n").split(" "))
        end = now()
        word, more = said if isinstance(said, tuple) else (said, "")
        if isinstance(more, (int, float)):
            more = "left=%d" % max(0, more * 1e6)
        elif more and not more.startswith(("number=", "left=")):
            more = "text=" + " ".join(more.split())
        say("%s begin=%d end=%d %s" % (word, begin, end, more))
