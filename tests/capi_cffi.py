"""redlock.h read by cffi as it says, and the library used through it.

    capi_cffi.py HEADER LIBRARY URL...

The environment variable TLS, if set: the URL of a node over TLS, and the files for it (see over_tls), one in a line.
"""

import os
import sys
import threading

import cffi

header, library, *urls = sys.argv[1:]
# As in the header.
text = open(header).read()
ffi = cffi.FFI()
ffi.cdef(text.split('extern "C" {\n#endif')[1].split("#ifdef")[0])
redlock = ffi.dlopen(library)

TTL, WAIT = 60_000, 20_000


def last_error():
    buf = ffi.new("char[]", 500)
    redlock.redlock_last_error(buf, len(buf))
    return ffi.string(buf).decode()


def ok(status):
    assert status == redlock.REDLOCK_OK, (status, last_error())


assert redlock.REDLOCK_LOG_TRACE == 5 and redlock.REDLOCK_TOKEN_SIZE == 20
assert ffi.string(redlock.redlock_version_string()).decode() in text

messages = []


@ffi.callback("void (int, const char *, void *)")
def on_log(level, message, user):
    messages.append((level, ffi.string(message).decode(), ffi.from_handle(user)))


user = ffi.new_handle("mine")
ok(redlock.redlock_set_log(redlock.REDLOCK_LOG_DEBUG, on_log, user))

out = ffi.new("redlock_t **")
strings = [ffi.new("char[]", url.encode()) for url in urls]
ok(redlock.redlock_new(ffi.new("char *[]", strings), len(strings), out))
client = out[0]
ok(redlock.redlock_set(client, redlock.REDLOCK_OPTION_NODE_TIMEOUT_MS, 2000))
name = "größe:1".encode()
ok(redlock.redlock_set_label(client, b"cffi"))

events = []


@ffi.callback("void (const redlock_event_t *, void *)")
def on_event(event, user):
    if event.resource != ffi.NULL:
        events.append((event.kind, event.why, ffi.buffer(event.resource, event.resource_len)[:]))


ok(redlock.redlock_set_observer(client, on_event, ffi.NULL))

out = ffi.new("redlock_lock_t **")
ok(redlock.redlock_acquire_within(client, name, len(name), TTL, WAIT, out))
lock = out[0]
assert redlock.redlock_try_acquire(client, name, len(name), TTL, out) == redlock.REDLOCK_BUSY
assert out[0] == ffi.NULL and "this program itself has the lock" in last_error()
holder, left, state = ffi.new("char[]", 100), ffi.new("uint64_t *"), ffi.new("int *")
ok(redlock.redlock_inspect(client, name, len(name), holder, len(holder), left, state))
assert state[0] == redlock.REDLOCK_STATE_HELD and 0 < left[0] <= TTL
assert ffi.string(holder).decode().endswith(" (cffi)")
assert 0 < redlock.redlock_lock_remaining_ms(lock) < TTL
ok(redlock.redlock_lock_ensure(lock, 1))
ok(redlock.redlock_lock_extend(lock, 2 * TTL))
assert redlock.redlock_lock_remaining_ms(lock) > TTL
token = ffi.new("uint8_t[]", redlock.REDLOCK_TOKEN_SIZE)
assert redlock.redlock_lock_token(lock, token, len(token)) == len(token)


def take_and_give():
    mine = ffi.new("redlock_lock_t **")
    for _ in range(20):
        ok(redlock.redlock_acquire_within(client, b"shared", 6, TTL, WAIT, mine))
        ok(redlock.redlock_lock_release(mine[0]))


threads = [threading.Thread(target=take_and_give) for _ in range(3)]
for thread in threads:
    thread.start()
# Messages come from all of them.
for _ in range(20):
    ok(redlock.redlock_set_log(redlock.REDLOCK_LOG_DEBUG, ffi.NULL, ffi.NULL))
    ok(redlock.redlock_set_log(redlock.REDLOCK_LOG_DEBUG, on_log, user))
for thread in threads:
    thread.join()

ok(redlock.redlock_lock_release(lock))
ok(redlock.redlock_try_acquire(client, name, len(name), TTL, out))
ok(redlock.redlock_lock_release(out[0]))
redlock.redlock_free(client)


def over_tls(url, *files):
    """A lock at a server that wants to see a certificate; the files are the CA's, the client's and its key."""
    texts = [open(file, "rb").read() for file in files] + [b""] * (3 - len(files))
    pems = [argument for text in texts for argument in (text or ffi.NULL, len(text))]
    out = ffi.new("redlock_t **")
    strings = [ffi.new("char[]", url.encode())]
    ok(redlock.redlock_new(ffi.new("char *[]", strings), 1, out))
    client = out[0]
    ok(redlock.redlock_set(client, redlock.REDLOCK_OPTION_NODE_TIMEOUT_MS, 2000))
    ok(redlock.redlock_set_tls(client, *pems, b"localhost"))
    out = ffi.new("redlock_lock_t **")
    status = redlock.redlock_try_acquire(client, name, len(name), TTL, out)
    if status == redlock.REDLOCK_OK:
        ok(redlock.redlock_lock_release(out[0]))
    redlock.redlock_free(client)
    return status


tls = os.environ.get("TLS", "").splitlines()
if tls:
    assert over_tls(*tls) == redlock.REDLOCK_OK
    assert over_tls(*tls[:2]) == redlock.REDLOCK_UNAVAILABLE
    assert "CertificateRequired" in last_error(), last_error()
assert (redlock.REDLOCK_EVENT_ACQUIRED, 0, name) in events, events
assert (redlock.REDLOCK_EVENT_NOT_ACQUIRED, redlock.REDLOCK_BUSY, name) in events, events
assert (redlock.REDLOCK_EVENT_ENDED, redlock.REDLOCK_ENDING_RELEASED, name) in events, events
ok(redlock.redlock_set_log(0, ffi.NULL, ffi.NULL))
verdicts = [text for level, text, mine in messages if level == 4 and mine == "mine"]
assert any(text.startswith("acquire ") and ": denied (" in text for text in verdicts), messages
print("ok")
