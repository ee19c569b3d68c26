/*
 * A job that many hosts start and one runs at a time, in C. (To run it once a night, see
 * redlock_inspect_last_run and redlock_lock_mark_done.) From the top of the checkout:
 *
 *     cargo rustc --release --features capi,tls --crate-type cdylib,staticlib
 *     cc -Isrc examples/capi/batch_job.c target/release/libredlock_sync.a -lpthread -ldl -lm -o batch_job
 *     ./batch_job redis://127.0.0.1:6379          # or the URLs of 3 or 5 independent servers
 *
 * It leaves with exit code 75 if another is running it, and with 130 after Ctrl-C.
 */

#define _POSIX_C_SOURCE 200809L

#include "redlock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RESOURCE "shop:nightly-import"
/* How long the others wait at most if this host dies in the middle of the job. */
#define TTL_MS 10000
/* However long the job takes, it is not renewed for longer than this. */
#define MAX_HOLD_MS (3600 * 1000)

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
    (void)signal;
    stop = 1;
}

static int failed(const char *what)
{
    char text[500];

    redlock_last_error(text, sizeof text);
    fprintf(stderr, "%s: %s\n", what, text);
    return 1;
}

/* The job. The lock is renewed meanwhile, and ended by the caller. */
static int import(redlock_lock_t *lock)
{
    struct timespec half_a_second = {0, 500 * 1000 * 1000};
    int part, status;

    for (part = 1; part <= 5; part++) {
        if (stop) {
            printf("interrupted; the next run goes on at part %d\n", part);
            return 130;
        }
        /* The write below takes less than 5 s. If less is left (this host was suspended, say), it
           must not happen any more. */
        status = redlock_lock_ensure(lock, 5000);
        if (status != REDLOCK_OK)
            return failed("the lock");
        printf("importing part %d of 5\n", part);
        fflush(stdout);
        nanosleep(&half_a_second, NULL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    redlock_t *redlock;
    redlock_lock_t *lock;
    struct sigaction action;
    int status, result;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);

    status = redlock_new((const char *const *)argv + 1, (size_t)argc - 1, &redlock);
    if (status != REDLOCK_OK)
        return failed("usage: batch_job URL...");
    redlock_set(redlock, REDLOCK_OPTION_NODE_TIMEOUT_MS, 500); /* a job is in no hurry */

    status = redlock_try_acquire(redlock, RESOURCE, strlen(RESOURCE), TTL_MS, &lock);
    if (status == REDLOCK_BUSY) {
        puts("another host is running it");
        redlock_free(redlock);
        return 75; /* EX_TEMPFAIL: try again later */
    }
    if (status == REDLOCK_OK)
        status = redlock_lock_keep_alive(lock, MAX_HOLD_MS);
    if (status != REDLOCK_OK) {
        result = failed("no lock");
        redlock_lock_release(lock);
        redlock_free(redlock);
        return result;
    }

    result = import(lock);
    status = redlock_lock_release(lock);
    if (result == 0 && status == REDLOCK_LOST)
        result = failed("the lock was lost before the end");
    if (result == 0)
        puts("done");
    redlock_free(redlock);
    return result;
}
