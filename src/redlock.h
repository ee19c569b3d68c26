/*
 * redlock.h - distributed locks on Redis, for C and every language that can call it.
 *
 * This header is the manual. Read it from the top: conventions, rules, the client object, acquiring,
 * asking, ending, lasting longer, log messages. `examples/capi/` has a complete program.
 *
 *     redlock_t *redlock;
 *     redlock_lock_t *lock;
 *     const char *urls[] = {"redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"};
 *     int status;
 *
 *     if (redlock_new(urls, 3, &redlock) != REDLOCK_OK)
 *         ...                                            // redlock_last_error() says why
 *     status = redlock_acquire(redlock, "account:17", 10, 10000, &lock);
 *     if (status == REDLOCK_OK) {
 *         ...                                            // read, think
 *         if (redlock_lock_ensure(lock, 1000) == REDLOCK_OK)
 *             ...                                        // a write that takes up to a second
 *         status = redlock_lock_release(lock);           // LOST: it was not ours to the end
 *     }
 *     redlock_free(redlock);
 *
 * A lock is a lease: it ends by itself when its time to live (ttl) is over, whether its holder has
 * finished or not. What that means, and when to take something else, stands in the guide under
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
 * for a redlock_t; redlock_lock_release() or redlock_lock_leak() for a redlock_lock_t. Ending
 * functions accept NULL and do nothing then. A lock may outlive the redlock_t that it came from.
 *
 * Inputs are copied: nothing that is passed in needs to live longer than the call.
 *
 * A resource (what is locked, the name of a Redis key) is a pointer and a length: 1 byte to 64 KiB,
 * any bytes, no NUL needed.
 *
 * Times are uint64_t milliseconds.
 *
 * Strings that are returned are static, or copied into the caller's buffer as snprintf() does it:
 * at most `cap` bytes with the NUL that is always there unless cap is 0; the result is the length
 * that the whole string has, without the NUL. buf may be NULL if cap is 0.
 *
 * NULL where a pointer is needed gives REDLOCK_CONFIG, or 0 from functions that return a value.
 * No NULL, and no code or option number that does not exist, ever crashes. (A handle that was ended
 * already, or never was one, does: as with free().)
 *
 *
 * Rules
 *
 * Threads. A redlock_t may be used from any number of threads at once; make one for the whole
 * program. A redlock_lock_t may be used from any thread, and from several at once. Whoever ends a
 * handle makes sure that no other thread is using it or will.
 *
 * Blocking. Only acquiring, extending, releasing, redlock_lock_keep_alive(),
 * redlock_lock_fencing_token(), redlock_lock_wait_lost() and redlock_free() may block; each says for how long, in terms of the
 * options. Calls in other threads add half a node timeout at most, where a node takes in nothing.
 * All others decide by the local clock and memory, without asking a node. (Calls with one lock from
 * several threads wait for each other while one of them changes the lock. redlock_lock_stop(),
 * redlock_lock_leak() and redlock_set_log() wait for a callback that is running. What ends the last use of connections
 * blocks as redlock_free(): also redlock_lock_leak(), and redlock_set() with a new timeout. A callback for log
 * messages adds what it takes.)
 *
 * Fork. In a child, a redlock_t of the parent works as before, over connections of its own; its
 * options are fixed there. A redlock_lock_t of the parent is inert in the child: it is lost (without a
 * reason), and ending it frees memory and tells the nodes nothing. Do not fork while
 * another thread is in redlock_set() or redlock_set_log(). A child is told by its process id: one that has the same id as
 * the process that called redlock_new() (the first process of a new pid namespace whose parent was the
 * first of its own, or a descendant that was given the id again) is taken for it. Call redlock_new() in
 * the child there.
 *
 * Signals. The library installs no handlers, and raises no SIGPIPE. Blocking functions go on after a
 * signal: use redlock_acquire_while() where a signal shall stop the waiting. Do not call any of these
 * functions in a signal handler. The library's threads are started by the calls that need them and
 * inherit the signal mask of the calling thread. pthread_cancel() of a thread that is in one of these
 * functions aborts the process.
 *
 * Exit. Nothing is released when the process exits with held locks: their ttl ends them. The library
 * must not be unloaded (dlclose).
 *
 * Nothing unwinds out of these functions, and nothing is printed. A callback must return: it must
 * not throw a C++ exception, longjmp out, or end its thread.
 * ------------------------------------------------------------------------------------------- */

/* The client object: the nodes, the connections to them, the options. */
typedef struct redlock redlock_t;

/* A lock that was acquired: held until it is released or its validity is over. */
typedef struct redlock_lock redlock_lock_t;

/* ---------------------------------------------------------------------------------------------
 * Version. That of the library in use: compare it with the header's where they may differ.
 * ------------------------------------------------------------------------------------------- */

uint32_t redlock_version_number(void);
const char *redlock_version_string(void);

/* ---------------------------------------------------------------------------------------------
 * Status codes. Each answers "what should I do now", and never changes its meaning.
 * ------------------------------------------------------------------------------------------- */

#define REDLOCK_OK 0
/* Held by another, for the whole time waited (or others were trying for it as well, and nobody got a
   majority): come back later, or leave the work to them. */
#define REDLOCK_BUSY 1
/* This lock is no longer held: its validity is over, or a majority of the nodes said so. Stop what
   it protects, now. */
#define REDLOCK_LOST 2
/* Not enough validity: granted too late to be of use (acquiring; it has been released again), or
   less left than asked for (redlock_lock_ensure(); it is still held). A longer ttl or faster nodes. */
#define REDLOCK_TOO_SLOW 3
/* Too few nodes answered for a verdict: nothing is known about the lock. redlock_last_error() has
   each failed node's cause. */
#define REDLOCK_UNAVAILABLE 4
/* The bound on extensions is used up. The lock is valid until its deadline: finish. */
#define REDLOCK_EXTENSION_LIMIT 5
/* redlock_acquire_while() was told to stop. */
#define REDLOCK_CANCELLED 6
/* Something passed in cannot work, now or later: NULL, no nodes, a bad URL, a ttl out of range, one
   server given under two addresses, ... redlock_last_error() names the value and the limit. */
#define REDLOCK_CONFIG 7
/* The operating system gave no random bytes for a token. */
#define REDLOCK_RANDOM 8
/* A bug in this library, caught at its border. Report it with redlock_last_error(). Nothing is
   known about the lock; its handle can be used and must be ended all the same. */
#define REDLOCK_PANIC 9

/* What a status code means, in a few words. Static; never NULL, for any number. */
const char *redlock_status_string(int status);

/* The text of the last failure in this thread: more than the code says, with the cause at each
   failed node. Never a password. A call that succeeds leaves it; empty before the first failure.
   Copies as snprintf(). */
size_t redlock_last_error(char *buf, size_t cap);

/* After UNAVAILABLE: how long until enough nodes vote, if only the restart guard keeps them from it. Of the
   last failure in this thread, as redlock_last_error(); 0: unknown. */
uint64_t redlock_last_retry_after_ms(void);

/* ---------------------------------------------------------------------------------------------
 * The client object
 * ------------------------------------------------------------------------------------------- */

/* Names the nodes: one is the single-instance lock, N independent masters (3 or 5 are usual) are
   Redlock, where a majority decides. `urls` are n strings: redis://, unix://, and rediss:// if the
   library was built with a TLS feature; with user, password and database. Nothing is connected before
   the first lock is acquired.
   CONFIG: no node or more than 64, a bad URL, the same address twice. */
int redlock_new(const char *const *urls, size_t n, redlock_t **out);

/* How long redlock_acquire() may try in all. 0 is one attempt, UINT64_MAX for ever. Default 10000. */
#define REDLOCK_OPTION_WAIT_MS 1
/* The bounds of the random pause between two attempts where no release wakes sooner (see the guide under
   "waiting"). Default 50 and 250. Setting one of them past
   the other moves the other along, so that the order of the two calls does not matter. */
#define REDLOCK_OPTION_RETRY_DELAY_MIN_MS 2
#define REDLOCK_OPTION_RETRY_DELAY_MAX_MS 3
/* How long one command may take: to be written to all nodes, and answered by as many as are needed.
   Without a majority each operation takes so long before it fails; a minority that does not answer
   costs some milliseconds once, and from then on nothing until it is back. Small against the ttl. 1 to
   3600000. Default 50. */
#define REDLOCK_OPTION_NODE_TIMEOUT_MS 4
/* How long connecting may take, with name resolution, TLS and authentication. An operation waits
   that long for connections only as long as no majority has ever been connected. 1 to 3600000.
   Default 500. */
#define REDLOCK_OPTION_CONNECT_TIMEOUT_MS 5
/* How often one lock can be extended by redlock_lock_extend(). 0 to UINT32_MAX. Default 10. */
#define REDLOCK_OPTION_MAX_EXTENSIONS 6
/* Protects against nodes that were restarted without their data: a node gives no votes until its server
   has been up for so long. It is the longest ttl that any client uses on the same resources; all of them
   need it, longer ttls are refused (CONFIG), and `INFO server` must be permitted. While no majority votes,
   operations fail with UNAVAILABLE, and redlock_last_retry_after_ms() says for how long. See the guide under "operations".
   0: none, the default; 3 to 3153600000000. A new value means new connections. */
#define REDLOCK_OPTION_RESTART_GUARD_MS 7
/* Whether a lock goes to whoever has waited longest, across processes: 0, the default, or 1. Acquirers that
   are not fair go before fair ones, so all who use the same resources should say the same. A waiter that hangs
   costs the others four node timeouts (at least 250 ms, at most 1 s). It is slower; see the guide under
   "waiting". */
#define REDLOCK_OPTION_FAIR 8

/* Sets one option, for the calls that begin after it; locks that are held keep what they were
   acquired with. Best done before the first lock: a new timeout means new connections.
   CONFIG: no such option, a value out of range (nothing is changed then), a forked child. */
int redlock_set(redlock_t *redlock, int option, uint64_t value);

/* Makes the connections now, where otherwise the first lock does, and asks each node whether it answers: for
   programs that want to fail at their start. Takes a connect timeout and five node timeouts at most. OK: a
   majority answers. UNAVAILABLE: none does; redlock_last_error() has each failed node's cause. CONFIG: two nodes
   are one server. */
int redlock_connect(redlock_t *redlock);

/* Ends the client object. The connections close when its locks are ended too; the last one to go
   may block until the releases that are due have been written, and what was written before has been
   answered, for at most a node timeout. */
void redlock_free(redlock_t *redlock);

/* ---------------------------------------------------------------------------------------------
 * Acquiring
 *
 * The ttl bounds how long the lock stays taken if this process dies: 3 ms to 100 years. The lock is
 * valid for at most 99 % of it less 2 ms (for clocks that differ), less what acquiring took.
 *
 * All of these fail with CONFIG and RANDOM at once, and after any failure whatever was granted has
 * been undone. One attempt blocks for at most two node timeouts; the first one ever for a connect
 * timeout and a node timeout more.
 * ------------------------------------------------------------------------------------------- */

/* One attempt. BUSY: held by another, or (REDLOCK_OPTION_FAIR) kept for one that waits; or others kept trying
   for it as well, and none of them got a majority. UNAVAILABLE, TOO_SLOW. */
int redlock_try_acquire(redlock_t *redlock, const void *resource, size_t resource_len,
                        uint64_t ttl_ms, redlock_lock_t **out);

/* Waits while others have it or too few nodes answer, for as long as REDLOCK_OPTION_WAIT_MS
   says. Threads of this process are served in the order in which they came. Fails as the last attempt
   did: BUSY, UNAVAILABLE, TOO_SLOW. No attempt starts after the wait is over. UNAVAILABLE at once where so
   many nodes refuse for good that no majority is left (a wrong password or none, NOPERM, no such database,
   a node of a Redis Cluster, something that is not a Redis server): waiting cannot help. */
int redlock_acquire(redlock_t *redlock, const void *resource, size_t resource_len,
                    uint64_t ttl_ms, redlock_lock_t **out);

/* The same with a wait of its own. 0 is one attempt, UINT64_MAX for ever. */
int redlock_acquire_within(redlock_t *redlock, const void *resource, size_t resource_len,
                           uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* Waits until keep_trying(user) returns 0: REDLOCK_OPTION_WAIT_MS does not count here. It is asked in the
   calling thread, before each attempt and at least every 50 ms during pauses; a flag that a signal
   handler sets stops the waiting so. CANCELLED: it returned 0. */
int redlock_acquire_while(redlock_t *redlock, const void *resource, size_t resource_len,
                          uint64_t ttl_ms, int (*keep_trying)(void *user), void *user,
                          redlock_lock_t **out);

/* Takes a lock that this thread can take again: if it holds the lock already, a handle more for it. Nothing
   is asked of the nodes then if at least half of the validity that ttl_ms gives is left; otherwise the lock is
   extended for all of its handles, which counts as one extension. Each handle is ended once, in any order;
   the last one releases the lock, and the others ask nobody. wait_ms as above.
   The handle belongs to its thread: calls with it in another one fail with CONFIG (or give 0), and do nothing: it
   is not freed either; end it before its thread ends. (redlock_lock_resource() can be called from
   anywhere.) redlock_lock_keep_alive(), redlock_lock_leak() and redlock_lock_token() do the same in any thread.
   After redlock_set() of a timeout or the restart guard, locks that were taken before are not seen.
   If the thread holds the lock: LOST if that is over (it is not taken anew before all its handles have ended),
   and what redlock_lock_extend() fails with. Otherwise as redlock_acquire(). */
int redlock_acquire_reentrant(redlock_t *redlock, const void *resource, size_t resource_len,
                              uint64_t ttl_ms, uint64_t wait_ms, redlock_lock_t **out);

/* The length of a token: the random value that signs one lock. */
#define REDLOCK_TOKEN_SIZE 20

/* Goes on with a lock that another process or thread handed over: its resource, its token
   (redlock_lock_token()) and how long it is still valid (redlock_lock_remaining_ms() there, less what
   the hand-over took). Believes what it is told and asks no node. The giver ends its handle with
   redlock_lock_leak(). Extensions count anew. */
int redlock_resume(redlock_t *redlock, const void *resource, size_t resource_len,
                   const uint8_t token[REDLOCK_TOKEN_SIZE], uint64_t validity_ms,
                   redlock_lock_t **out);

/* ---------------------------------------------------------------------------------------------
 * Asking a lock. Local: no node is asked, nothing blocks.
 * ------------------------------------------------------------------------------------------- */

/* How long the lock is still valid, rounded down. 0 once it is over or known to be lost. */
uint64_t redlock_lock_remaining_ms(const redlock_lock_t *lock);

/* 1 while the lock is valid, otherwise 0. */
int redlock_lock_is_valid(const redlock_lock_t *lock);

/* Makes sure that the lock stays valid for at_least_ms: to be called before each critical write, with
   the time that the write may take. LOST: the validity is over. TOO_SLOW: less is left than asked
   for; it is still held. */
int redlock_lock_ensure(const redlock_lock_t *lock, uint64_t at_least_ms);

/* How often redlock_lock_extend() can still succeed. 0 for a lock that is kept alive. */
uint32_t redlock_lock_extensions_left(const redlock_lock_t *lock);

/* How many handles this thread has of a reentrant lock, this one included. 1 for any other, 0 for NULL and for
   one that has ended. */
size_t redlock_lock_depth(const redlock_lock_t *lock);

/* The token's REDLOCK_TOKEN_SIZE bytes (no string: no NUL is added), for redlock_resume(). Copies at
   most cap of them and returns how many there are. Whoever knows the token can extend and release the
   lock: never log it. */
size_t redlock_lock_token(const redlock_lock_t *lock, uint8_t *buf, size_t cap);

/* A number for this lock that grows from holder to holder, for stores that refuse smaller ones: see the
   guide under "fencing". No secret. The first call asks the nodes, and blocks for at most two node
   timeouts and as long as the nodes' numbers differ, until the validity ends; later calls give the same
   number and ask nobody. *out is 0 on failure.
   LOST: the validity is over, or so many nodes no longer hold the lock that no majority can. UNAVAILABLE: too
   few nodes answered; ask again. CONFIG: NULL. */
int redlock_lock_fencing_token(const redlock_lock_t *lock, uint64_t *out);

/* What is locked. Bytes, as with the token. */
size_t redlock_lock_resource(const redlock_lock_t *lock, void *buf, size_t cap);

/* ---------------------------------------------------------------------------------------------
 * Extending and ending a lock
 * ------------------------------------------------------------------------------------------- */

/* Makes the lock valid for ttl_ms from now (less the drift) if it would end earlier; it never
   shortens. Blocks for at most two node timeouts. A failed extension deletes, creates and shortens
   nothing on the nodes; it may have prolonged the lock on some:
   LOST: the validity is over, or a majority no longer holds the lock.
   UNAVAILABLE: too few nodes answered. The old deadline stays, so trying again is worth while.
   EXTENSION_LIMIT: REDLOCK_OPTION_MAX_EXTENSIONS is used up (only successful ones count).
   CONFIG: ttl out of range; or the lock is kept alive, which renews it by itself.
   Nodes that do not hold the lock (they were restarted, or connected late) are given it again. */
int redlock_lock_extend(redlock_lock_t *lock, uint64_t ttl_ms);

/* Releases the lock, waits until a majority has confirmed it, and frees the handle, whatever it
   returns (but for a reentrant lock of another thread). Blocks for at most a node timeout.
   LOST: it had been lost before; what it protected may have been touched by another.
   UNAVAILABLE: too few nodes confirmed; the ttl ends the lock on the others. */
int redlock_lock_release(redlock_lock_t *lock);

/* Frees the handle (unless the lock is reentrant) and does not release the lock: nobody can take it until its ttl ends. For
   a throttle ("at most once in 5 seconds"), and after handing the lock over. */
void redlock_lock_leak(redlock_lock_t *lock);

/* ---------------------------------------------------------------------------------------------
 * Work that takes longer than the ttl
 *
 * A lock that is kept alive is renewed by itself every third of its ttl, until max_hold_ms is used up.
 * The handle stays the same. If the lock is lost all the same, its holder learns it by
 * redlock_lock_is_valid(), redlock_lock_ensure() and the functions below, which all decide by the local
 * clock, whatever the nodes are doing, and agree.
 * ------------------------------------------------------------------------------------------- */

/* Has the lock renewed, for at most max_hold_ms counted from its acquisition. One thread renews all
   locks of a redlock_t. Blocks only if the lock is nearly expired and therefore renewed at once.
   CONFIG: it is kept alive already (nothing is changed then); max_hold_ms is less than the time that it
   has been held; no thread can be started. LOST, UNAVAILABLE: as redlock_lock_extend().
   After any other failure than "kept alive already" the lock has been released: the handle is
   lost for good and must still be ended. */
int redlock_lock_keep_alive(redlock_lock_t *lock, uint64_t max_hold_ms);

/* Ends the renewal: a lock as before, with the deadline that it has now. Callbacks are forgotten; one
   that is running is waited for. CONFIG: it is not kept alive. LOST: keep_alive had failed. */
int redlock_lock_stop(redlock_lock_t *lock);

/* How long the lock is still renewed. 0 if it is not kept alive. */
uint64_t redlock_lock_hold_left_ms(const redlock_lock_t *lock);

/* Waits until the lock is lost, for at most timeout_ms. LOST: it is. OK: it was still held
   when the time was over. CONFIG: it is not kept alive, or not any more. */
int redlock_lock_wait_lost(const redlock_lock_t *lock, uint64_t timeout_ms);

/* Why a lock that was kept alive was lost. */
/* It is not lost, or not kept alive. */
#define REDLOCK_REASON_NONE 0
/* So many nodes no longer held it that no majority does: another has it, or somebody deleted it. */
#define REDLOCK_REASON_TAKEN 1
/* Its validity ended before a majority of the nodes had answered a renewal. */
#define REDLOCK_REASON_EXPIRED 2
/* max_hold_ms was used up. */
#define REDLOCK_REASON_HOLD_LIMIT 3

int redlock_lock_lost_reason(const redlock_lock_t *lock);

/* Has fn(reason, user) called once, when the lock is lost: at once if it is lost already, never after
   it was stopped or ended. Several can be set; each is called. CONFIG: the lock is not kept alive.

   fn runs on a thread of its own (where none can be started, on the one that found the loss), while
   other threads go on using the lock. It should only pass the news on: set a flag, write to a pipe,
   signal a condition. The lock belongs to its owner: called by fn with the same lock, functions say
   that it is lost (without a reason) and do nothing, and redlock_lock_release() and
   redlock_lock_leak() do not free it. Other handles can be used.

   redlock_lock_stop(), redlock_lock_release() and redlock_lock_leak() wait for a callback that is
   running; when they return, none is running nor will be, so that `user` may be freed. Do
   not hold a mutex in them that fn waits for. In a forked child fn is never called. */
int redlock_lock_on_lost(redlock_lock_t *lock, void (*fn)(int reason, void *user), void *user);

/* ---------------------------------------------------------------------------------------------
 * What the library logs
 *
 * Nothing unless redlock_set_log() says to whom. WARN is worth reading: a node is away or back, a lock was
 * found lost. That a lock is held by another is no warning.
 * ------------------------------------------------------------------------------------------- */

#define REDLOCK_LOG_ERROR 1
#define REDLOCK_LOG_WARN 2
#define REDLOCK_LOG_INFO 3
/* One line for each attempt to acquire: verdict, votes, time. */
#define REDLOCK_LOG_DEBUG 4
/* And the votes that it rests on. */
#define REDLOCK_LOG_TRACE 5

/* Has fn(level, message, user) called for each message of max_level or more serious, from now on, in the whole
   process. fn NULL: nothing is logged, as in the beginning (whatever max_level says). OK, or
   CONFIG: no such level; or the library is part of a Rust program that has set a logger of its own, which
   goes on getting the messages.

   message is UTF-8, has no password and no token, and lives until fn returns.

   fn runs in the thread that has something to say, which may be one of the library's, and in several at once.
   That thread holds no lock of the library (what is logged in a call with a redlock_lock_t is passed on when the
   call is nearly over). So fn may call these functions, also with that redlock_lock_t, but must not end a handle
   that the call is about. (While redlock_acquire_reentrant() extends a lock that the thread has, that lock is
   not valid for fn.) What is logged meanwhile in the same thread is not passed on. fn should return soon,
   since the thread may be the one that renews locks; other threads do not wait for it.

   When redlock_set_log() returns, no thread is in the fn that was set before, nor will be: the old `user` may be
   freed. It waits for that, so do not hold a mutex that the old fn waits for. Called by fn, it does not wait,
   and the old `user` must stay valid. Whatever fn uses must live until NULL is set, also while the program
   ends. Each call keeps some bytes of memory for good.

   In a forked child fn goes on being called. */
int redlock_set_log(int max_level, void (*fn)(int level, const char *message, void *user),
                    void *user);

#ifdef __cplusplus
}
#endif

#endif
