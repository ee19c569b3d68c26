/*
 * redlock_testing.h - nodes for unit tests, in the test's own process.
 *
 * A node of this kind is no server: only redlock.h's functions may talk to it, and only in tests. With it, a test of code
 * that uses locks needs no Redis, takes milliseconds, and decides what happens. The library has these functions if it was
 * built with `--features capi,testing`.
 *
 *     redlock_testing_t *node;
 *     char url[64];
 *     const char *urls[] = {url};
 *
 *     if (redlock_testing_start(&node) != REDLOCK_OK)
 *         ...
 *     redlock_testing_url(node, url, sizeof url);
 *     redlock_new(urls, 1, &redlock);
 *     redlock_testing_hold(node, "shop:account:17", 15, "web-3", 10000);   // by another process
 *     ...                                                                  // the code under test: REDLOCK_BUSY
 *     redlock_free(redlock);
 *     redlock_testing_free(node);
 *
 * Three nodes make a majority of two. The conventions and rules are those of redlock.h. What is done to a node takes
 * effect before the function returns, and holds until something else is done. All functions may be called by all threads;
 * none waits for the code under test. In a forked child the nodes of its parent go on in the parent: do not use them there.
 * (redlock_testing_free() does nothing to them there.)
 */

#ifndef REDLOCK_TESTING_H
#define REDLOCK_TESTING_H

#include "redlock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A node: a port on 127.0.0.1, and some threads. */
typedef struct redlock_testing redlock_testing_t;

/* Starts a node without locks. */
int redlock_testing_start(redlock_testing_t **out);

/* Ends it. NULL: does nothing. */
void redlock_testing_free(redlock_testing_t *node);

/* Its URL, for redlock_new(). Copies as snprintf(). */
size_t redlock_testing_url(const redlock_testing_t *node, char *buf, size_t cap);

/* ---------------------------------------------------------------------------------------------
 * Locks
 * ------------------------------------------------------------------------------------------- */

/* Another process holds the lock on this node from now on, also if the code under test held it, which then has lost it:
   for ttl_ms, or with UINT64_MAX until it is released. label: who that is, for people; may be NULL. */
int redlock_testing_hold(redlock_testing_t *node, const void *resource, size_t len, const char *label,
                         uint64_t ttl_ms);

/* The holder releases the lock, and the first process that waits is notified. 1, or 0 if it was free. */
int redlock_testing_release(redlock_testing_t *node, const void *resource, size_t len);

/* From now on each lock that is free when it is asked for is held by another process ... */
int redlock_testing_hold_all(redlock_testing_t *node);

/* ... which now releases all that it holds, and takes no more. */
void redlock_testing_release_all(redlock_testing_t *node);

/* How long the node keeps the lock. 0: it is free. */
uint64_t redlock_testing_held_ms(const redlock_testing_t *node, const void *resource, size_t len);

/* The holder's token, to be compared with redlock_lock_token(). Copies at most cap bytes. REDLOCK_TOKEN_SIZE, or 0 if
   the lock is free. */
size_t redlock_testing_token(const redlock_testing_t *node, const void *resource, size_t len, uint8_t *buf, size_t cap);

/* The holder's label; empty if it has none, or the lock is free. Copies as snprintf(). */
size_t redlock_testing_label(const redlock_testing_t *node, const void *resource, size_t len, char *buf, size_t cap);

/* How many processes are in the queue for the lock. Each redlock_t counts as one. */
size_t redlock_testing_waiting(const redlock_testing_t *node, const void *resource, size_t len);

/* ---------------------------------------------------------------------------------------------
 * Time
 * ------------------------------------------------------------------------------------------- */

/* Moves the clock of this node forward: locks end without a wait. The code under test goes by its own clock: there a
   lock remains valid until its own deadline, and a call that asks the nodes returns REDLOCK_LOST. */
void redlock_testing_advance(redlock_testing_t *node, uint64_t ms);

/* ---------------------------------------------------------------------------------------------
 * Faults: the last one counts
 * ------------------------------------------------------------------------------------------- */

/* Answers everything that concerns locks with this error, such as "NOPERM this user has no permissions". */
int redlock_testing_refuse(redlock_testing_t *node, const char *error);

/* Carries out everything at once, and answers this much later. */
void redlock_testing_answer_late(redlock_testing_t *node, uint64_t ms);

/* Accepts connections, and does and answers nothing, like a process that has been stopped. */
void redlock_testing_be_silent(redlock_testing_t *node);

/* Closes all connections, and accepts no more. The locks remain. */
void redlock_testing_go_down(redlock_testing_t *node);

/* Ends these four. */
void redlock_testing_recover(redlock_testing_t *node);

/* Closes all connections, once. */
void redlock_testing_close_connections(redlock_testing_t *node);

/* A restart without data: closes all connections, and forgets all locks. */
void redlock_testing_forget(redlock_testing_t *node);

/* ---------------------------------------------------------------------------------------------
 * Requests
 * ------------------------------------------------------------------------------------------- */

#define REDLOCK_TESTING_ACQUIRE 1
#define REDLOCK_TESTING_EXTEND 2
/* Also those that undo an attempt. */
#define REDLOCK_TESTING_RELEASE 3
#define REDLOCK_TESTING_FENCE 4
#define REDLOCK_TESTING_OTHER 5
/* Not requests, but connections that were made. */
#define REDLOCK_TESTING_CONNECTIONS 6

/* How many of them the node has received. Those that the library sends by itself count as well. */
uint64_t redlock_testing_requests(const redlock_testing_t *node, int kind);

#ifdef __cplusplus
}
#endif

#endif
