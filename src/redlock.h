/*
 * redlock.h - distributed locks on Redis, for C and every language that can call it.
 *
 * This header is the manual. Read it from the top: conventions, rules, the client object, acquiring,
 * querying a lock, extending and ending it, automatic renewal, log messages. `examples/capi/` has a
 * complete program, `examples/python/` a package for Python, and `redlock.hpp` is for C++.
 *
 *     redlock_t *redlock;
 *     redlock_lock_t *lock;
 *     const char *urls[] = {"redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"};
 *     int status, released;
 *
 *     if (redlock_new(urls, 3, &redlock) != REDLOCK_OK)
 *         ...                                            // redlock_last_error() says why
 *     status = redlock_acquire(redlock, "shop:account:17", 15, 10000, &lock);
 *     if (status == REDLOCK_OK) {
 *         ...                                            // read, think
 *         status = redlock_lock_ensure(lock, 1000);
 *         if (status == REDLOCK_OK)
 *             ...                                        // a write that takes up to a second
 *         released = redlock_lock_release(lock);         // LOST: it was not ours to the end
 *         if (status == REDLOCK_OK)
 *             status = released;
 *     }
 *     redlock_free(redlock);
 *
 * A lock is a lease: it ends by itself when its time to live (ttl) is over, whether its holder has
 * finished or not. What that means, and when to use something else, is explained in the guide under
 * "guarantees": https://docs.rs/redlock-sync/latest/redlock_sync/guide/index.html
 */

#ifndef REDLOCK_H
#define REDLOCK_H

#include <stddef.h>
#include <stdint.h>

/* The header's version. */
#define REDLOCK_VERSION_MAJOR 0
#define REDLOCK_VERSION_MINOR 1
#define REDLOCK_VERSION_PATCH 0
#define REDLOCK_VERSION_STRING "0.1.0"
/* To compare: 1.2.3 is 1002003. */
#define REDLOCK_VERSION_NUMBER \
    (REDLOCK_VERSION_MAJOR * 1000000 + REDLOCK_VERSION_MINOR * 1000 + REDLOCK_VERSION_PATCH)

/*
 * From here on, to the end of extern "C", there are only declarations and numbers, which Python's cffi reads:
 *
 *     text = open("redlock.h").read()
 *     ffi = cffi.FFI()
 *     ffi.cdef(text.split('extern "C" {\n#endif')[1].split("#ifdef")[0])
 *     redlock = ffi.dlopen("libredlock_sync.so")      # redlock.redlock_new(...), redlock.REDLOCK_OK
 */
#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------
 * Conventions
 *
 * Results. A function that can fail returns an int: REDLOCK_OK (0) or one of the positive status
 * codes below. Outputs come last, and are set to NULL on failure.
 *
 * Ownership. What a function creates is ended exactly once, by its ending function: redlock_free()
 * for a redlock_t; redlock_lock_release(), redlock_lock_leak() or redlock_lock_leak_for() for a redlock_lock_t. Ending
 * functions accept NULL and do nothing then. A lock may outlive the redlock_t that it came from.
 *
 * Inputs are copied: nothing that is passed in needs to live longer than the call.
 *
 * A resource (what is locked, the name of a Redis key) is a pointer and a length: 1 byte to 64 KiB,
 * any bytes, no NUL needed. The names of keys that are kept beside locks, as "{shop:a}:redlock:w", give REDLOCK_CONFIG.
 *
 * Times are uint64_t milliseconds.
 *
 * Strings that are returned are static, or copied into the caller's buffer as snprintf() does it:
 * at most `cap` bytes with the NUL that is always there unless cap is 0; the result is the length
 * that the whole string has, without the NUL. buf may be NULL if cap is 0. A function that returns a status does not report
 * that it cut a text; the same as JSON is whole, or CONFIG.
 *
 * NULL where a pointer is needed gives REDLOCK_CONFIG, or 0 from functions that return a value.
 * NULL never crashes, nor does a code or option number that does not exist. (A handle that has already
 * been ended, or never was a handle, does, as with free().)
 *
 *
 * Rules
 *
 * Threads. A redlock_t may be used from any number of threads at once; make one for the whole
 * program. A redlock_lock_t may be used from any thread, and from several at once. Before a thread
 * ends a handle, make sure that no other thread is using it or will.
 *
 * Blocking. Only redlock_connect(), acquiring, extending, releasing, redlock_lock_keep_alive(),
 * redlock_lock_fencing_token(), redlock_lock_leak_for(), redlock_lock_mark_done(), redlock_lock_wait_lost(),
 * redlock_free(), and the functions that make connections of their own (redlock_check(), redlock_inspect(),
 * their forms for JSON, redlock_inspect_last_run() and redlock_break_lock()) may block; each says for how
 * long, in terms of the options. While the lock's slot of a Redis Cluster moves to another server, a call that
 * names one or two node timeouts takes up to six. Calls in other threads add at most half a node timeout, where a node
 * takes in nothing. All other functions decide by the local clock and memory, without asking a node.
 * (Calls with one lock from several threads wait for each other while one of them changes the lock.
 * redlock_lock_stop(), redlock_lock_leak() and redlock_set_log() wait for a callback that is running.
 * A call that ends the last use of connections blocks like redlock_free(): also redlock_lock_leak(),
 * redlock_set() with a new timeout or restart guard, redlock_set_tls(), redlock_set_prefix() and
 * redlock_set_observer(). A callback for log messages, and one for events, adds its own time.)
 *
 * Fork. In a child, a redlock_t of the parent works as before, over connections of its own; its
 * options are fixed there. A redlock_lock_t of the parent is inert in the child: it is lost
 * (REDLOCK_REASON_OTHER_PROCESS), and ending it frees memory and tells the nodes nothing. Do not fork while
 * another thread is in redlock_set_log(). A child is recognised by its process id: one
 * that has the same id as the process that called redlock_new() is mistaken for it. (That happens to the
 * first process of a new pid namespace whose parent was the first of its own, and to a descendant that
 * was given the id again.) Call redlock_new() in such a child.
 *
 * Signals. The library installs no handlers, and raises no SIGPIPE. Blocking functions go on after a
 * signal: use redlock_acquire_while() or redlock_set_keep_trying() where a signal should stop the waiting.
 * Do not call any of these functions in a signal handler. The library's threads are started by the calls
 * that need them and inherit the signal mask of the calling thread. pthread_cancel() of a thread that is in
 * one of these functions aborts the process.
 *
 * Exit. Nothing is released when the process exits with held locks: their ttl ends them. The library
 * must not be unloaded (dlclose).
 *
 * ABI. Until 1.0 a new minor version may change anything here; a new patch version does not. From 1.0 on, what is
 * declared here stays as it is: functions, numbers, and the members of redlock_event_t, in their order. A later version
 * may add functions, numbers, and members at the end of redlock_event_t, which only the library makes. So a program that
 * was compiled with an older header works with a newer library of the same major version; the soname that cargo-c
 * gives the library changes with the major version, before 1.0 with the minor one. The library exports these
 * functions and nothing else.
 *
 * Nothing unwinds out of these functions, and nothing is printed. A callback must return: it must
 * not throw a C++ exception, longjmp out, or end its thread.
 * ------------------------------------------------------------------------------------------- */

/* The client object: the nodes, the connections to them, the options. */
typedef struct redlock_client redlock_t;

/* A lock that was acquired: held until it is released or its validity is over. */
typedef struct redlock_lock redlock_lock_t;

/* ---------------------------------------------------------------------------------------------
 * Version of the library in use. Compare it with the header's version if the two may differ.
 * ------------------------------------------------------------------------------------------- */

uint32_t redlock_version_number(void);
const char *redlock_version_string(void);

/* ---------------------------------------------------------------------------------------------
 * Status codes. Each answers "what should I do now", and never changes its meaning.
 * ------------------------------------------------------------------------------------------- */

#define REDLOCK_OK 0
/* Another holder had the lock for the whole time waited (or others tried for it as well, and none got
   a majority): come back later, or leave the work to them. */
#define REDLOCK_BUSY 1
/* This lock is no longer held: its validity is over, or a majority of the nodes said so. Stop what
   it protects, now. */
#define REDLOCK_LOST 2
/* Not enough validity: the lock was granted so late that its validity was over (acquiring; it has been
   released again): use a longer ttl, or faster nodes. Or less is left than asked for (redlock_lock_ensure(); it is still
   held): stop, as with LOST. */
#define REDLOCK_TOO_SLOW 3
/* Too few nodes answered to decide: it is not known whether the lock is held. redlock_last_error() has
   the cause at each failed node. */
#define REDLOCK_UNAVAILABLE 4
/* The bound on extensions is used up. The lock is valid until its deadline: finish. */
#define REDLOCK_EXTENSION_LIMIT 5
/* redlock_acquire_while() was stopped by its callback. */
#define REDLOCK_CANCELLED 6
/* A value that was passed in cannot work, now or later: NULL, no nodes, a bad URL, a ttl out of range, one
   server given under two addresses, ... redlock_last_error() names the value and the limit. */
#define REDLOCK_CONFIG 7
/* The operating system supplied no random bytes for a token. */
#define REDLOCK_RANDOM 8
/* A bug in this library, caught at its border. Report it with redlock_last_error(). Nothing is
   known about the lock; its handle can be used and must be ended all the same, unless the call was to end it. */
#define REDLOCK_PANIC 9
/* A majority of the nodes has another kind of lock under the name, or data that is no lock; redlock_last_error() says
   which. Give the lock another name: one name is for one kind. Or try again when that lock has ended. Only the kinds
   that are not plain fail so, at once; a plain lock on such a name waits, and is BUSY. */
#define REDLOCK_OTHER_KIND 10

/* The name of a status code, such as "BUSY", to stand before the sentence of redlock_last_error(). Static; never NULL,
   for any number. */
const char *redlock_status_string(int status);

/* The text of the last failure in this thread, with more detail than the code: the lock's name, who has it and for
   how long, the cause at each failed node. It is a whole sentence. Never a password. A call that succeeds does not
   change it; it is empty before the first failure. Copies as snprintf(). */
size_t redlock_last_error(char *buf, size_t cap);

/* The parts of that text, for programs, of the last failure in this thread. The texts are copied as snprintf() does it.
   After UNAVAILABLE: the `at`-th of the failed nodes, from 0 on, and its cause. 0: there are no more. */
size_t redlock_last_cause(size_t at, char *buf, size_t cap);
/* After BUSY: the holder's label. Empty: it has none, or the call made a single attempt. */
size_t redlock_last_label(char *buf, size_t cap);
/* After BUSY: how long the holder has the lock at most, from the failure on, unless it extends or releases it. 0: unknown. */
uint64_t redlock_last_remaining_ms(void);
/* After BUSY: 1 if this program itself has the lock: a handle from the same redlock_t, neither ended nor left. A thread that
   takes its own lock again needs redlock_acquire_reentrant(). 0 does not show that another program has it: only plain locks
   are looked for, and of very many locks some are not found. */
int redlock_last_is_own(void);

/* After UNAVAILABLE: how long it takes until enough nodes vote, if only the restart guard keeps them from
   voting. It belongs to the last failure in this thread, like redlock_last_error(). 0: unknown. */
uint64_t redlock_last_retry_after_ms(void);

/* After UNAVAILABLE: 1 if nodes refuse for good (a wrong password, a right that is missing, no Redis
   server) and no majority is left. Calling again is of no use before the URLs or the
   servers are changed, and a call that waits returns at once: pause before you try again. It belongs to the last failure in
   this thread, like redlock_last_error(). 0: that may pass. */
int redlock_last_is_permanent(void);

/* Why a lock was lost: redlock_last_lost_reason(), redlock_lock_lost_reason(), a function for
   redlock_lock_on_lost(), and an event. */
/* It is not lost. */
#define REDLOCK_REASON_NONE 0
/* Too few nodes still hold it for a majority, and another holder has it, on one of them at least. */
#define REDLOCK_REASON_TAKEN 1
/* Its validity ended before a majority of the nodes had confirmed a renewal, or before it was extended or released. */
#define REDLOCK_REASON_EXPIRED 2
/* max_hold_ms was used up. */
#define REDLOCK_REASON_HOLD_LIMIT 3
/* Too few nodes still hold it for a majority, and no node named another holder: its key was deleted, or nodes have lost
   their data. */
#define REDLOCK_REASON_DELETED 4
/* Too few nodes still hold it for a majority, and they do not report why: servers that run no scripts. */
#define REDLOCK_REASON_NOT_HELD 5
/* It belongs to the process from which this one was forked. */
#define REDLOCK_REASON_OTHER_PROCESS 6
/* It was released before: redlock_lock_keep_alive() failed, which releases it. */
#define REDLOCK_REASON_RELEASED 7

/* After LOST: why, one of these numbers. It belongs to the last failure in this thread, like redlock_last_error().
   Numbers can be added in later versions. */
int redlock_last_lost_reason(void);

/* ---------------------------------------------------------------------------------------------
 * The client object
 * ------------------------------------------------------------------------------------------- */

/* Names the nodes: one is the single-instance lock, N independent masters (3 or 5 are usual) are
   Redlock, where a majority decides. `urls` are n strings: redis://, unix://, and rediss:// if the
   library was built with the feature `tls`; with user, password and database. Or
   redis+sentinel://host,host/NAME, a set that sentinels watch, or redis+cluster://host,host, a Redis Cluster:
   see the guide under "deployments". One string may have several URLs, with commas or white space between them, as
   a variable or a secret has them. Nothing is connected before redlock_connect() or the first lock.
   CONFIG: no node or more than 64, a bad URL, the same address twice. */
int redlock_new(const char *const *urls, size_t n, redlock_t **out);

/* How long redlock_acquire() may try in all. 0 is one attempt, UINT64_MAX for ever. Default 10000.
   redlock_acquire_while() is not bounded by it. */
#define REDLOCK_OPTION_WAIT_MS 1
/* The bounds of the random pause between two attempts, if no release wakes the waiter sooner (see the
   guide under "waiting"). Default 50 and 250. Setting one of them past the other moves the other along,
   so that the order of the two calls does not matter. */
#define REDLOCK_OPTION_RETRY_DELAY_MIN_MS 2
#define REDLOCK_OPTION_RETRY_DELAY_MAX_MS 3
/* How long one command may take: to be written to all nodes, and answered by as many as are needed.
   If no majority answers, each operation takes this long before it fails. A minority that does not
   answer costs some milliseconds once, and then nothing until it is back. It should be small compared
   with the ttl. 1 to 3600000. Default 50. */
#define REDLOCK_OPTION_NODE_TIMEOUT_MS 4
/* How long connecting to a node may take, including name resolution, TLS and authentication. An
   operation waits this long for connections only if no majority has ever been connected. 1 to 3600000.
   Default 500. */
#define REDLOCK_OPTION_CONNECT_TIMEOUT_MS 5
/* How often one lock can be extended by redlock_lock_extend(). 0 to UINT32_MAX. Default 10. */
#define REDLOCK_OPTION_MAX_EXTENSIONS 6
/* Protects against nodes that were restarted without their data: a node gives no votes until its server
   has been up for this time. The value is the longest ttl that any client uses on the same resources. All
   clients need the same value; longer ttls are refused (CONFIG), and `INFO server` must be permitted. While
   no majority votes, operations fail with UNAVAILABLE, and redlock_last_retry_after_ms() says for how
   long. See the guide under "operations". 0: none for any node; 3 to 3153600000000. A new value means
   new connections. Where it is not set there is none for servers, and one of 30000 for
   redis+sentinel:// and redis+cluster://. */
#define REDLOCK_OPTION_RESTART_GUARD_MS 7
/* Whether a lock goes to the caller that has waited longest, across processes: 0, the default, or 1. Clients
   without the option go before those with it, so all that use the same resources should set the same
   value. A waiter that hangs costs the others its turn of four node timeouts (at least 250 ms, at most
   1 s), and a pause of at most the same length. Fair locks are slower; see the guide under "waiting". */
#define REDLOCK_OPTION_FAIR 8

/* Sets one option, for the calls that begin after it; locks that are held keep the options that they
   were acquired with. Best done before the first lock: a new timeout means new connections.
   CONFIG: no such option, a value out of range (nothing is changed then), a forked child. */
int redlock_set(redlock_t *redlock, int option, uint64_t value);

/* How nodes at rediss:// are reached, in a library that was built with the feature `tls`. Each of these may be NULL:
   - `roots`, roots_len bytes: the certificates of the CAs that are trusted, all in one text. NULL: those of the
     operating system.
   - `chain` and `key`, which belong together: the certificate that this program shows to servers that ask for one,
     with those between it and that of the CA; and its private key (PKCS#8, PKCS#1 or SEC1). NULL: none.
   - `server_name`: the name that the certificates of all nodes must be for. NULL: the host in each URL.
   Certificates and keys are in PEM, and are copied. A call replaces what the one before has set. Best done before
   the first lock: it means new connections. For example, with a file in memory:

       redlock_set_tls(redlock, ca, strlen(ca), NULL, 0, NULL, 0, NULL);

   CONFIG: one of them is not what it should be (nothing is changed then), no TLS in this library, a forked child. */
int redlock_set_tls(redlock_t *redlock, const char *roots, size_t roots_len, const char *chain, size_t chain_len,
                    const char *key, size_t key_len, const char *server_name);

/* A text for people that is stored with each lock from now on: which program holds it, such as a host's name and a
   process id. redlock_inspect() and the command `redlock` show it; it decides nothing. While a call waits, it is among the
   waiting_labels of redlock_inspect_json(). At most 64 bytes of printable
   UTF-8; NULL or "": none, the default.
   CONFIG: it is longer, or not printable (nothing is changed then), a forked child. */
int redlock_set_label(redlock_t *redlock, const char *label);

/* What stands before the name of each lock on the nodes: in its keys, and in the names of channels. All names in calls,
   errors and log lines are without it. Programs that use the same locks need the same prefix. With "team:" the lock
   nightly has the key team:nightly, and a user needs the patterns ~team:*, ~{team:* and &team:*; with "{team}:" only
   ~{team}:* and &{team}:*. At most 64 bytes of printable UTF-8 without spaces; NULL or "": none, the default. Best set
   before the first lock: it means new connections.
   CONFIG: it is longer, or not printable (nothing is changed then), a forked child. */
int redlock_set_prefix(redlock_t *redlock, const char *prefix);

/* Connects to all nodes now, which otherwise the first lock does, and asks each whether it answers: for
   programs that should fail at their start. Blocks for at most a connect timeout and five node timeouts.
   OK: a majority answers (the log names the nodes that do not). UNAVAILABLE: no majority answers;
   redlock_last_error() has the cause at each failed node. CONFIG: two nodes are one server. */
int redlock_connect(redlock_t *redlock);

/* Whether the nodes are fit for locks: settings that lose locks, rights that are missing, nodes that do not answer;
   redlock_connect() only asks whether a majority answers. For the start of a program, and for monitoring. A lock named
   `probe` (len bytes) is taken and released on each node, so the user must be permitted to use that name. `fit` is 1 if
   there is no fault and a lock could be tried on a majority, else 0. `buf` gets the findings, one in a line, cut to
   `cap` bytes with the NUL; it may be NULL. New connections are made, with a connect timeout each.
   OK: the nodes were asked, whatever `fit` is. CONFIG: a bad name. RANDOM. */
int redlock_check(redlock_t *redlock, const void *probe, size_t len, char *buf, size_t cap, int *fit);

/* A majority of the nodes does not have the lock. */
#define REDLOCK_STATE_FREE 0
/* A majority has it for one holder. */
#define REDLOCK_STATE_HELD 1
/* None of these: attempts collide, an attempt left keys on nodes that were away, or the keys are not locks. */
#define REDLOCK_STATE_BLOCKED 2
/* Too few nodes answered. */
#define REDLOCK_STATE_UNKNOWN 3
/* A majority has read locks, or permits of a semaphore. */
#define REDLOCK_STATE_READERS 4
#define REDLOCK_STATE_PERMITS 5

/* Shows who has a lock at this moment, for people; do not decide by it whether to take the lock. `holder` gets a
   fingerprint of the holder's token and its label, if it has one: "1a2b3c4d (web-2:4711)"; cut to `cap` bytes with the
   NUL, and empty if there is no holder. It may be NULL.
   Each reader and each permit has a line, such as "1a2b3c4d (web-2:4711) in slot 2"; of many only those that last longest:
   about 60,000 bytes of what a node has, which are 500 to 1000. Behind that is ", left" if the holder
   has given the lock up and left it for a time (redlock_lock_leak_for()). `remaining_ms` is how long the state lasts, if
   nothing else happens: 0 if the lock is free or the state unknown, UINT64_MAX if there is no end. `state` is one of
   the above. Changes nothing. New connections are made, with a connect timeout each.
   OK: the nodes were asked, whatever they said. CONFIG: a bad name. */
int redlock_inspect(redlock_t *redlock, const void *resource, size_t len, char *holder, size_t cap,
                    uint64_t *remaining_ms, int *state);

/* The same two as JSON, for programs: the documents that `redlock doctor --json` and `redlock inspect --json` print; but
   a finding's advice names options as they are here.
   `json` gets the document with its NUL, and `needed` how many bytes that takes; 0 if there is none. A document of a lock
   with one holder has about 300 bytes for each node; each reader and each permit takes about 100 more, and each process that
   waits its label.
   CONFIG: also if it does not fit into `cap` bytes. Then `json` is empty; call again with room for `needed` and some more,
   which asks the nodes again. */
int redlock_check_json(redlock_t *redlock, const void *probe, size_t len, char *json, size_t cap, size_t *needed);
int redlock_inspect_json(redlock_t *redlock, const void *resource, size_t len, char *json, size_t cap, size_t *needed);

/* The last run that redlock_lock_mark_done() marked as done, if its period is not over: *ended_ms is when it ended, in
   milliseconds since 1970, and 0 if there is none; *took_ms is how long it took, and *again_in_ms how long it takes until
   the period is over, when the work may be done again; `label` gets the label of the process, which has at most 64 bytes,
   cut to `cap` bytes with the NUL. All of them but ended_ms may be NULL. To be asked by a holder of the lock, before it does
   what is done once in a period; by others for people. Blocks as redlock_inspect() does.
   UNAVAILABLE: no majority of the nodes answered. CONFIG: NULL; a resource that is empty, too long or the name of a
   key beside a lock; or a name with a `}` and no tag in a Redis Cluster. */
int redlock_inspect_last_run(redlock_t *redlock, const void *resource, size_t len, char *label, size_t cap, uint64_t *ended_ms,
                             uint64_t *took_ms, uint64_t *again_in_ms);

/* Releases a lock that another process holds, for people who know that its holder will not come back. `holder` is the
   text of that holder from redlock_inspect(): one line. (Whether the holder has left the lock since then does not matter.)
   `broken` is 1 if the lock was released; 0 if a majority of the nodes no longer has it for this holder: it has ended, or
   another holder has it, whose lock stays.
   This gives up mutual exclusion: the holder is not stopped. If it still runs, it learns of it by LOST from its next
   extension, renewal or release, and relies on the lock until then. Only a fencing token keeps out what it still writes.
   Those that wait are notified; set REDLOCK_OPTION_FAIR if they wait in the order of their arrival. New connections are
   made, with a connect timeout each.
   UNAVAILABLE: too few nodes answered; those that did have deleted it. CONFIG, and nothing is deleted: a bad name; a text
   that names no holder, such as a label alone or a line that was cut; a text of several readers or permits: give one line;
   the key has no ttl on some node: it is no lock; or a node has more readers or permits than redlock_inspect() shows, and
   this holder is not among those. */
int redlock_break_lock(redlock_t *redlock, const void *resource, size_t len, const char *holder, int *broken);

/* Ends the client object. The connections are closed when all its locks have ended too. The call that ends
   the last of them may block until pending releases have been written and everything written before has
   been answered, for at most a node timeout. While a thread of the library still asks a question that was
   given up (redlock_set_keep_trying()), the connections are its, and no call waits: if the program ends then, a lock
   that was just dropped stays for its ttl. redlock_lock_release() waits for the nodes itself. */
void redlock_free(redlock_t *redlock);

/* ---------------------------------------------------------------------------------------------
 * Acquiring
 *
 * The ttl bounds how long the lock stays taken if this process dies: 3 ms to 100 years. The lock is
 * valid for at most 99 % of it less 2 ms (for clocks that differ), less what acquiring took.
 *
 * All of these fail with CONFIG and RANDOM at once. After any failure, what was granted has been undone
 * on all nodes that can be reached; the others get it when they are back. One attempt blocks for at
 * most two node timeouts; the very first one for a connect timeout and a node timeout more.
 * ------------------------------------------------------------------------------------------- */

/* One attempt. BUSY: another holder has the lock, or it is reserved for one that waits
   (REDLOCK_OPTION_FAIR), or others tried for it as well and none of them got a majority. UNAVAILABLE,
   TOO_SLOW. */
int redlock_try_acquire(redlock_t *redlock, const void *resource, size_t resource_len,
                        uint64_t ttl_ms, redlock_lock_t **out);

/* Waits for up to REDLOCK_OPTION_WAIT_MS while others hold the lock or too few nodes answer. Threads of
   this process are served in the order in which they came. Fails as the last attempt did: BUSY,
   UNAVAILABLE, TOO_SLOW. No attempt starts after the wait is over. UNAVAILABLE at once if nodes
   refuse for good that no majority is left (a wrong password or none, NOPERM, no such database, a
   plain URL of a Redis Cluster's server, something that is not a Redis server), since waiting cannot help then. */
int redlock_acquire(redlock_t *redlock, const void *resource, size_t resource_len,
                    uint64_t ttl_ms, redlock_lock_t **out);

/* The same with its own wait in place of the option. 0 is one attempt, UINT64_MAX for ever. */
int redlock_acquire_within(redlock_t *redlock, const void *resource, size_t resource_len,
                           uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* Waits until keep_trying(user) returns 0; REDLOCK_OPTION_WAIT_MS does not bound it. keep_trying is called
   in the calling thread, before each attempt and at least every 50 ms during pauses, and while first
   connections are waited for. So it can look at a flag that a signal handler sets. CANCELLED: it returned
   0. UNAVAILABLE at once if the nodes refuse for good, as in redlock_acquire(). */
int redlock_acquire_while(redlock_t *redlock, const void *resource, size_t resource_len,
                          uint64_t ttl_ms, int (*keep_trying)(void *user), void *user,
                          redlock_lock_t **out);

/* The same for all calls that wait: from now on, those of this thread call keep_trying(user) as redlock_acquire_while()
   does, and return CANCELLED when it returns 0; each still waits no longer than it would. A single attempt calls it only
   while first connections are waited for. redlock_connect(), redlock_check(), redlock_inspect(), their forms for JSON,
   redlock_inspect_last_run(), and redlock_break_lock() while it looks for the holder, call it every 50 ms. After CANCELLED,
   what they had begun goes on in a thread of the library for as long as they may block, and keeps the connections of the
   client object until then: so redlock_free() does not wait for what is owed to the nodes, and a program that gives up
   question after question has a thread, and its connections, for each. In a child that keep_trying itself forks, all of
   these calls return CANCELLED.
   For languages in which signals, or the end of the program, must end a wait. NULL: no function, as at the beginning. A
   thread that has set one is handed no lock by its own process: it is notified, as by other processes. */
void redlock_set_keep_trying(int (*keep_trying)(void *user), void *user);

/* Takes a reentrant lock, which this thread can take again: if it holds the lock already, it gets another
   handle for it. Then the nodes are not asked if at least half of the validity that ttl_ms gives is left;
   otherwise the lock is extended for all of its handles, which counts as one extension. Each handle is
   ended once, in any order. Ending the last one releases the lock; ending another asks no node. wait_ms as
   above.
   The handle belongs to its thread, and must be ended before the thread ends. Calls with it in another
   thread fail with CONFIG (or return 0) and do nothing, so that it is not freed either.
   (redlock_lock_resource() can be called from anywhere.) redlock_lock_keep_alive(), redlock_lock_leak(),
   redlock_lock_leak_for() and redlock_lock_token() fail in the same way in any thread.
   After redlock_set() of a timeout or the restart guard, redlock_set_tls(), redlock_set_prefix() or redlock_set_observer(),
   locks that were taken before are not recognised.
   If the thread holds the lock: LOST if the lock is over (it is not taken again before all its handles
   have ended), and the failures of redlock_lock_extend(). Otherwise as redlock_acquire(). */
int redlock_acquire_reentrant(redlock_t *redlock, const void *resource, size_t resource_len,
                              uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* The following take other locks than those on one name. `*out` is extended, kept alive, checked, leaked and released as any
   lock, and handed over by redlock_resume_permit() and the like. wait_ms as above; they fail as
   redlock_acquire_within(), and with OTHER_KIND at once if a majority of the nodes has another kind of lock under the
   name, or other data: one name is one kind. The guide says what each is for, under "semaphores", "read_write_locks"
   and "several_names". */

/* One lock on all of the n names, or on none of them: resources[i] has resource_lens[i] bytes. Their order does not
   matter, and a name that is given twice counts once. redlock_lock_resource() gives the first in the order of their bytes.
   CONFIG: no names, more than 1000 different ones, or more than 1 MiB of them. */
int redlock_acquire_several(redlock_t *redlock, const void *const *resources, const size_t *resource_lens, size_t n,
                            uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* One of `permits` permits: at most so many holders at a time, in all processes that name the same number. CONFIG: not
   from 1 to 1000. */
int redlock_acquire_permit(redlock_t *redlock, const void *resource, size_t resource_len, uint32_t permits,
                           uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* A read lock, beside which others may have read locks, but no process a write lock or a plain lock. */
int redlock_acquire_read(redlock_t *redlock, const void *resource, size_t resource_len,
                         uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* A write lock: it excludes all other locks on the name, and keeps out new readers while it waits. */
int redlock_acquire_write(redlock_t *redlock, const void *resource, size_t resource_len,
                          uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* The length of a token: the random value that identifies one acquisition on the nodes. */
#define REDLOCK_TOKEN_SIZE 20

/* Takes over a lock that another process or thread hands over, given its resource, its token
   (redlock_lock_token()) and how long it is still valid (redlock_lock_remaining_ms() there, less the time
   that the hand-over took). Relies on these values and asks no node. The giver ends its handle with
   redlock_lock_leak(). The count of extensions starts again at zero. CONFIG: a value out of range. */
int redlock_resume(redlock_t *redlock, const void *resource, size_t resource_len,
                   const uint8_t token[REDLOCK_TOKEN_SIZE], uint64_t validity_ms,
                   redlock_lock_t **out);

/* The same for the other kinds, named as when they were acquired. redlock_lock_slot() is -1 until a permit is extended. */
int redlock_resume_several(redlock_t *redlock, const void *const *resources, const size_t *resource_lens, size_t n,
                           const uint8_t token[REDLOCK_TOKEN_SIZE], uint64_t validity_ms,
                           redlock_lock_t **out);
int redlock_resume_permit(redlock_t *redlock, const void *resource, size_t resource_len, uint32_t permits,
                          const uint8_t token[REDLOCK_TOKEN_SIZE], uint64_t validity_ms,
                          redlock_lock_t **out);
int redlock_resume_read(redlock_t *redlock, const void *resource, size_t resource_len,
                        const uint8_t token[REDLOCK_TOKEN_SIZE], uint64_t validity_ms,
                        redlock_lock_t **out);
int redlock_resume_write(redlock_t *redlock, const void *resource, size_t resource_len,
                         const uint8_t token[REDLOCK_TOKEN_SIZE], uint64_t validity_ms,
                         redlock_lock_t **out);

/* ---------------------------------------------------------------------------------------------
 * Querying a lock. Local unless it says otherwise: no node is asked, nothing blocks.
 * ------------------------------------------------------------------------------------------- */

/* How long the lock is still valid, rounded down. 0 once it is over or known to be lost. */
uint64_t redlock_lock_remaining_ms(const redlock_lock_t *lock);

/* 1 while the lock is valid, otherwise 0. */
int redlock_lock_is_valid(const redlock_lock_t *lock);

/* Checks that the lock stays valid for at least at_least_ms. Call it before each critical write, with
   the time that the write may take; if the lock is kept alive, with half of its ttl at most: right before a renewal a little
   less than two thirds of it are left. LOST: the lock is lost, or its validity is over. TOO_SLOW: less is left than
   asked for; it is still held, and if nothing extends it, this comes before LOST: do not write. */
int redlock_lock_ensure(const redlock_lock_t *lock, uint64_t at_least_ms);

/* How often redlock_lock_extend() can still succeed. 0 for a lock that is kept alive. */
uint32_t redlock_lock_extensions_left(const redlock_lock_t *lock);

/* How many handles this thread has of a reentrant lock, this one included. 1 for any other, 0 for NULL and for
   one that has ended. */
size_t redlock_lock_depth(const redlock_lock_t *lock);

/* Which of the permits it is, from 0 on: no two valid holders have the same. -1: it is no permit, or NULL,
   or has ended; or it was resumed, and not extended since. */
int64_t redlock_lock_slot(const redlock_lock_t *lock);

/* The token's REDLOCK_TOKEN_SIZE bytes (no string: no NUL is added), for redlock_resume() and the like. Copies at
   most cap of them and returns how many there are. With the token it is possible to extend and release the
   lock: never log it. */
size_t redlock_lock_token(const redlock_lock_t *lock, uint8_t *buf, size_t cap);

/* A number for this lock that grows from holder to holder, for stores that refuse smaller numbers: see the
   guide under "fencing". Not a secret. The first call asks the nodes. It blocks for at most two node
   timeouts, or longer while the nodes' numbers differ, but never past the end of the validity. Later calls
   return the same number and ask no node. *out is 0 on failure.
   LOST: the validity is over, or nodes no longer hold the lock and no majority is left.
   UNAVAILABLE: too few nodes answered; try again. CONFIG: NULL, or a name with a `}` and no tag in a Redis Cluster. */
int redlock_lock_fencing_token(const redlock_lock_t *lock, uint64_t *out);

/* Marks the work of this lock as done, for the rest of the period that began when the work did: it has taken took_ms.
   Until then redlock_inspect_last_run() returns it. The lock is still held. Blocks as redlock_lock_extend() does.
   LOST: the validity is over, or nodes no longer hold the lock and no majority is left. UNAVAILABLE: too few nodes
   answered; try again, with the time that has passed added to took_ms. CONFIG: NULL; took_ms is not less than period_ms; not a
   plain lock, or one that can be entered again; a name with a `}` and no tag in a Redis Cluster, which
   redlock_inspect_last_run() refuses, too, before the work. */
int redlock_lock_mark_done(const redlock_lock_t *lock, uint64_t period_ms, uint64_t took_ms);

/* What is locked: bytes, copied like the token. */
size_t redlock_lock_resource(const redlock_lock_t *lock, void *buf, size_t cap);

/* ---------------------------------------------------------------------------------------------
 * Extending and ending a lock
 * ------------------------------------------------------------------------------------------- */

/* Makes the lock valid for ttl_ms from now (less the allowance for clocks) if it would end earlier; it
   never shortens. Blocks for at most two node timeouts. A failed extension deletes, creates and shortens
   nothing on the nodes; it may have prolonged the lock on some:
   LOST: the validity is over, or a majority no longer holds the lock.
   UNAVAILABLE: too few nodes answered. The old deadline stays in force, so it is worth trying again.
   EXTENSION_LIMIT: REDLOCK_OPTION_MAX_EXTENSIONS is used up (only successful ones count).
   CONFIG: ttl out of range; or the lock is kept alive, and so renewed automatically.
   A successful extension also sets the lock again on nodes that do not hold it, because they were
   restarted or connected late. */
int redlock_lock_extend(redlock_lock_t *lock, uint64_t ttl_ms);

/* Releases the lock, waits until a majority has confirmed it, and frees the handle, whatever it
   returns (except for a reentrant lock of another thread). Blocks for at most a node timeout.
   LOST: it had already been lost; others may have touched what it protected.
   UNAVAILABLE: too few nodes confirmed; on the others the lock ends with its ttl. */
int redlock_lock_release(redlock_lock_t *lock);

/* Frees the handle (unless the lock is reentrant) without releasing the lock: it cannot be taken until its
   ttl ends. For a throttle ("at most once in 5 seconds"), and after handing the lock over.
   CONFIG: it is reentrant. LOST: in a forked child. OK also if it had been lost. */
int redlock_lock_leak(redlock_lock_t *lock);

/* The same, and shortens the lock on the nodes, so that it cannot be taken for time_ms from now, and can be after that: for
   work that must not be done again too soon, where the ttl has to be longer. It never prolongs: if less is left, the lock
   ends with its ttl. 0: the lock is released. Waits until a majority has confirmed it, for at most two node timeouts, and
   frees the handle, whatever it returns (unless the lock is reentrant). No process may resume the lock: a node that is
   shortened late ends its lock, too.
   LOST: it had already been lost. UNAVAILABLE: too few nodes confirmed; the lock ends after time_ms, or at the latest with
   its ttl. CONFIG: it is reentrant. */
int redlock_lock_leak_for(redlock_lock_t *lock, uint64_t time_ms);

/* ---------------------------------------------------------------------------------------------
 * Work that takes longer than the ttl
 *
 * A lock that is kept alive is renewed automatically every third of its ttl, until max_hold_ms is used up.
 * The handle stays the same. If the lock is lost all the same, its holder can find out with
 * redlock_lock_is_valid(), redlock_lock_ensure() and the functions below, which all decide by the local
 * clock, whatever the nodes are doing, and never contradict each other.
 * ------------------------------------------------------------------------------------------- */

/* Keeps the lock alive, for at most max_hold_ms counted from its acquisition. One thread renews all
   locks of a redlock_t. Blocks only if the lock has nearly expired and is therefore renewed at once, for
   at most two node timeouts.
   CONFIG: it is kept alive already, or reentrant (nothing is changed then); max_hold_ms is less than the
   time that it has been held. LOST, UNAVAILABLE: as redlock_lock_extend(); UNAVAILABLE also if the system has no thread
   for renewals now.
   After any failure but the first two the lock has been released: the handle reports it lost,
   and must still be ended. */
int redlock_lock_keep_alive(redlock_lock_t *lock, uint64_t max_hold_ms);

/* Ends the renewal. The lock is a plain one again, with its current deadline. Its callbacks are removed;
   the call waits for one that is running. CONFIG: it is not kept alive. LOST: redlock_lock_keep_alive()
   had failed. */
int redlock_lock_stop(redlock_lock_t *lock);

/* How long the lock will still be renewed. 0 if it is not kept alive. */
uint64_t redlock_lock_hold_left_ms(const redlock_lock_t *lock);

/* Waits until the lock is lost, for at most timeout_ms. LOST: it is lost. OK: it was still held
   when the time was over. CONFIG: it is not kept alive, or no longer. */
int redlock_lock_wait_lost(const redlock_lock_t *lock, uint64_t timeout_ms);

/* Why the lock was lost, whether it is kept alive or not: a REDLOCK_REASON, the first that was found. */
int redlock_lock_lost_reason(const redlock_lock_t *lock);

/* Calls fn(reason, user) once, when the lock is lost; at once if it is lost already, and never after the
   lock was stopped or ended. Several callbacks can be set; each is called. CONFIG: the lock is not kept
   alive.

   fn runs on a thread of its own (or, if none can be started, on the one that found the loss), while
   other threads go on using the lock. It should only pass on the news: set a flag, write to a pipe,
   signal a condition. The lock belongs to its owner: if fn calls a function with the same lock, the
   function reports the lock lost and does nothing; redlock_lock_release(), redlock_lock_leak() and
   redlock_lock_leak_for() return CONFIG and do not free it. Other handles can be used.

   redlock_lock_stop(), redlock_lock_release(), redlock_lock_leak() and redlock_lock_leak_for() wait for a callback that is
   running. When they return, none is running and none will be called, so `user` may be freed. Do not
   hold a mutex that fn waits for while calling them. In a forked child fn is never called. */
int redlock_lock_on_lost(redlock_lock_t *lock, void (*fn)(int reason, void *user), void *user);

/* Calls fn(left_ms, user) once, when no more than margin_ms of the validity is left, since no renewal has succeeded or
   max_hold is used up: before the loss, while there is time to save what has been done. left_ms is what is left then.
   A renewal may succeed all the same. At once if so little is left already; not after the loss, and not for a lock
   that is found taken or deleted. Choose at most half of the ttl: right before a renewal a little less than two thirds
   of it are left. CONFIG: the lock is not kept alive.

   For fn and `user` the same holds as for redlock_lock_on_lost(), but the functions that fn calls with the same lock
   return CONFIG, or 0 for a value, which does not mean that the lock is lost. */
int redlock_lock_on_expiring(redlock_lock_t *lock, uint64_t margin_ms, void (*fn)(uint64_t left_ms, void *user), void *user);

/* How long ago the last renewal that succeeded began; or the acquisition, before the first. For a health check: with nodes
   that answer it stays below half of the ttl. 0: the lock is not kept alive, or in a forked child. */
uint64_t redlock_lock_since_renewal_ms(const redlock_lock_t *lock);

/* ---------------------------------------------------------------------------------------------
 * What the library logs
 *
 * Nothing is logged unless redlock_set_log() sets a callback. WARN is worth reading: a node is away or
 * back, a lock was found lost. A lock that another holder has is not a warning.
 * ------------------------------------------------------------------------------------------- */

#define REDLOCK_LOG_ERROR 1
#define REDLOCK_LOG_WARN 2
#define REDLOCK_LOG_INFO 3
/* One line for each attempt to acquire: result, votes, time. */
#define REDLOCK_LOG_DEBUG 4
/* And the answers of the nodes, one by one. */
#define REDLOCK_LOG_TRACE 5

/* From now on, calls fn(level, message, user) for each message of max_level or more serious, in the whole
   process. fn NULL: nothing is logged, as at the beginning (whatever max_level is). OK, or CONFIG: no such
   level; or the library is part of a Rust program that has set a logger of its own, which keeps getting
   the messages.

   message is UTF-8, contains no password and no token, and is valid until fn returns.

   fn runs in the thread that logs the message, which may be one of the library's, and in several threads at
   once. That thread holds no mutex of the library (messages logged in a call with a redlock_lock_t are passed
   on when the call is nearly over). So fn may call these functions, even with that redlock_lock_t, but must
   not end a handle that the call is about. (While redlock_acquire_reentrant() extends a lock that the thread
   holds, that lock is not valid for fn.) Messages logged in the same thread while fn runs are not passed on.
   fn should return soon, since the thread may be the one that renews locks; other threads do not wait for it.

   redlock_set_log() waits until no thread is in the fn that was set before, and none will enter it again; then
   the old `user` may be freed. So do not hold a mutex that the old fn waits for. If fn itself calls it, it does
   not wait, and the old `user` must stay valid. Whatever fn uses must live until NULL is set, even while the
   program ends. Each call keeps some bytes of memory for good.

   In a forked child fn is still called. */
int redlock_set_log(int max_level, void (*fn)(int level, const char *message, void *user),
                    void *user);

/* ---------------------------------------------------------------------------------------------
 * Events, for metrics and alerts
 * ------------------------------------------------------------------------------------------- */

/* A lock is held from now on, or a call returned none (`why`: the status). */
#define REDLOCK_EVENT_ACQUIRED 1
#define REDLOCK_EVENT_NOT_ACQUIRED 2
/* A lock was extended, by hand or by a renewal, or was not (`why`: the status; a renewal tries again). */
#define REDLOCK_EVENT_EXTENDED 3
#define REDLOCK_EVENT_NOT_EXTENDED 4
/* A lock was found lost (`why`: a REDLOCK_REASON). It ends later. */
#define REDLOCK_EVENT_LOST 5
/* A lock is no longer held, or was given up (`why`: a REDLOCK_ENDING). Each that was acquired ends once. */
#define REDLOCK_EVENT_ENDED 6
/* A node gives no votes from now on, or gives them again. */
#define REDLOCK_EVENT_NODE_AWAY 7
#define REDLOCK_EVENT_NODE_BACK 8

/* A majority confirmed the release. */
#define REDLOCK_ENDING_RELEASED 1
/* The release was not confirmed: the lock ends with its ttl. */
#define REDLOCK_ENDING_NOT_CONFIRMED 2
/* The release was written, and no answer was waited for. */
#define REDLOCK_ENDING_DROPPED 3
/* redlock_lock_leak() or redlock_lock_leak_for(): the lock ends by itself. */
#define REDLOCK_ENDING_LEAKED 4
/* It had been lost before. */
#define REDLOCK_ENDING_WAS_LOST 5

/* What has happened. All of it is valid until fn returns. */
typedef struct redlock_event {
    int kind; /* a REDLOCK_EVENT; a later version may have more */
    int why;  /* as said above; else 0 */
    /* The lock's name, without a NUL; of several names the first. NULL for events of nodes. */
    const void *resource;
    size_t resource_len;
    /* In microseconds. ACQUIRED, NOT_ACQUIRED: how long the call took. EXTENDED, NOT_EXTENDED: what was left of the
       validity. LOST, ENDED: how long the lock was held. NODE_BACK: how long the node was away. */
    uint64_t time_us;
    uint32_t attempts; /* ACQUIRED, NOT_ACQUIRED: how many; 0: it was resumed */
    int renewal;       /* EXTENDED, NOT_EXTENDED: 1 if by redlock_lock_keep_alive() */
    size_t node;       /* NODE_AWAY, NODE_BACK: its index in redlock_new() */
    const char *address; /* and its host and port, or path; else "" */
    const char *text;    /* NOT_ACQUIRED, NOT_EXTENDED, NODE_AWAY: why, as redlock_last_error() says it; else "" */
} redlock_event_t;

/* From now on, calls fn(event, user) for each event of this client object; a second call replaces the first. Call it
   right after redlock_new(): it means new connections.
   Events of a call are reported in its thread, before it returns; those of renewals and nodes in threads that do nothing
   else. So fn may be called by several threads at once. No mutex of the library is held meanwhile: fn may use these
   functions, but must not end, ask or change a handle that the event is about: inside a call with it that fails with
   CONFIG, or returns 0, and does nothing. A lock whose validity is over when fn returns is not
   acquired (TOO_SLOW) or extended (LOST). In a forked child fn is not called.
   fn NULL: no function that was set for this client object is called from now on, and `user` may be freed: the call waits
   until no thread is in one of them. (If fn itself calls it, it does not wait for that function. Two functions that end each
   other at the same time, in two threads, wait for each other for ever: end them elsewhere.) Without that, fn and what
   it uses must live as long as the process: the library's threads may report an event after redlock_free().
   CONFIG: a forked child. */
int redlock_set_observer(redlock_t *redlock, void (*fn)(const redlock_event_t *event, void *user), void *user);

#ifdef __cplusplus
}
#endif

#endif
