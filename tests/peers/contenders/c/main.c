/* This crate through its C interface, with its default options. The lines: see tests/peers/README.md. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "redlock.h"

/* More names than any scenario uses. */
static struct {
    char name[32];
    redlock_lock_t *lock;
} locks[32];

static redlock_lock_t **slot(const char *name)
{
    for (size_t i = 0; i < sizeof locks / sizeof *locks; i++) {
        if (locks[i].name[0] == 0)
            snprintf(locks[i].name, sizeof locks[i].name, "%s", name);
        if (strcmp(locks[i].name, name) == 0)
            return &locks[i].lock;
    }
    abort();
}

/* In microseconds. */
static uint64_t now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static int carry_out(redlock_t *redlock, const char *what, const char *name, uint64_t ttl, uint64_t wait, char *more,
                     size_t size)
{
    redlock_lock_t **lock = slot(name);
    uint64_t number = 0;
    int status = REDLOCK_LOST;
    if (strcmp(what, "acquire") == 0) {
        if (*lock != NULL)
            redlock_lock_release(*lock); /* of a lock that was lost */
        *lock = NULL;
        status = redlock_acquire_within(redlock, name, strlen(name), ttl, wait, lock);
    } else if (strcmp(what, "release") == 0) {
        if (*lock != NULL)
            status = redlock_lock_release(*lock);
        *lock = NULL;
        return status;
    } else if (*lock == NULL) {
        return status;
    } else if (strcmp(what, "extend") == 0) {
        status = redlock_lock_extend(*lock, ttl);
    } else if (strcmp(what, "check") == 0) {
        status = redlock_lock_ensure(*lock, 0);
    } else if (strcmp(what, "fence") == 0) {
        status = redlock_lock_fencing_token(*lock, &number);
        snprintf(more, size, "number=%" PRIu64, number);
        return status;
    }
    if (status == REDLOCK_OK)
        snprintf(more, size, "left=%" PRIu64, redlock_lock_remaining_ms(*lock) * 1000);
    return status;
}

int main(void)
{
    const char *urls[64];
    size_t count = 0;
    char line[256], what[16], name[32];
    redlock_t *redlock;
    char *nodes = strdup(getenv("NODES"));
    for (char *url = strtok(nodes, ","); url != NULL && count < 64; url = strtok(NULL, ","))
        urls[count++] = url;
    if (redlock_new(urls, count, &redlock) != REDLOCK_OK)
        return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready library=redlock-sync(C) version=%s wait=given keeps=:fence,:w\n", redlock_version_string());
    while (fgets(line, sizeof line, stdin) != NULL) {
        uint64_t ttl = 0, wait = 0;
        char more[1024] = "";
        name[0] = 0;
        if (sscanf(line, "%15s %31s %" SCNu64 " %" SCNu64, what, name, &ttl, &wait) < 1)
            continue;
        uint64_t begin = now(CLOCK_MONOTONIC);
        int status = REDLOCK_OK;
        if (strcmp(what, "wall") == 0)
            snprintf(more, sizeof more, "number=%" PRIu64, now(CLOCK_REALTIME) / 1000);
        else if (strcmp(what, "write") != 0)
            status = carry_out(redlock, what, name, ttl, wait, more, sizeof more);
        const char *word = "failed";
        if (status == REDLOCK_OK) {
            word = "ok";
        } else {
            word = status == REDLOCK_BUSY ? "busy" : status == REDLOCK_LOST ? "lost" : "failed";
            size_t used = (size_t)snprintf(more, sizeof more, "text=");
            redlock_last_error(more + used, sizeof more - used);
        }
        printf("%s begin=%" PRIu64 " end=%" PRIu64 " %s\n", word, begin, now(CLOCK_MONOTONIC), more);
    }
    redlock_free(redlock);
    free(nodes);
    return 0;
}
