/* Uses every function of redlock_testing.h. */

#include "redlock_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            char text[500];                                                         \
            redlock_last_error(text, sizeof text);                                  \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, text);      \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

#define NAME "shop:account:17"
#define LEN 15
#define TTL 60000

static redlock_testing_t *nodes[3];
static redlock_t *redlock;

static int try_lock(void)
{
    redlock_lock_t *lock;
    int status = redlock_try_acquire(redlock, NAME, LEN, TTL, &lock);

    redlock_lock_release(lock);
    return status;
}

/* Connections come back within a second or two. */
static void lock_within_20_s(void)
{
    redlock_lock_t *lock;

    CHECK(redlock_acquire_within(redlock, NAME, LEN, TTL, 20000, &lock) == REDLOCK_OK);
    CHECK(redlock_lock_release(lock) == REDLOCK_OK);
}

#define ALL(call)                   \
    do {                            \
        int i;                      \
        for (i = 0; i < 3; i++) {   \
            call;                   \
        }                           \
    } while (0)

static void start(void)
{
    char urls[3][64];
    const char *list[3];

    ALL(CHECK(redlock_testing_start(&nodes[i]) == REDLOCK_OK));
    ALL(CHECK(redlock_testing_url(nodes[i], urls[i], 64) == strlen(urls[i])));
    ALL(CHECK(strncmp(urls[i], "redis://127.0.0.1:", 18) == 0));
    ALL(list[i] = urls[i]);
    CHECK(redlock_new(list, 3, &redlock) == REDLOCK_OK);
    CHECK(redlock_set(redlock, REDLOCK_OPTION_NODE_TIMEOUT_MS, 500) == REDLOCK_OK);
    CHECK(redlock_connect(redlock) == REDLOCK_OK);
}

static void holders(void)
{
    redlock_lock_t *lock;
    uint8_t mine[REDLOCK_TOKEN_SIZE], theirs[REDLOCK_TOKEN_SIZE];
    char label[64];

    ALL(CHECK(redlock_testing_hold(nodes[i], NAME, LEN, "web-3", TTL) == REDLOCK_OK));
    CHECK(try_lock() == REDLOCK_BUSY);
    CHECK(redlock_testing_held_ms(nodes[0], NAME, LEN) > TTL / 2);
    CHECK(redlock_testing_label(nodes[0], NAME, LEN, label, sizeof label) == 5 && strcmp(label, "web-3") == 0);
    CHECK(redlock_testing_waiting(nodes[0], NAME, LEN) == 0);
    ALL(CHECK(redlock_testing_release(nodes[i], NAME, LEN) == 1));
    CHECK(redlock_testing_release(nodes[0], NAME, LEN) == 0);
    CHECK(redlock_testing_token(nodes[0], NAME, LEN, theirs, sizeof theirs) == 0);

    CHECK(redlock_try_acquire(redlock, NAME, LEN, TTL, &lock) == REDLOCK_OK);
    CHECK(redlock_lock_token(lock, mine, sizeof mine) == sizeof mine);
    ALL(while (redlock_testing_token(nodes[i], NAME, LEN, theirs, sizeof theirs) == 0));
    CHECK(memcmp(mine, theirs, sizeof mine) == 0);
    ALL(redlock_testing_advance(nodes[i], TTL + 1));
    CHECK(redlock_lock_release(lock) == REDLOCK_LOST);

    ALL(CHECK(redlock_testing_hold_all(nodes[i]) == REDLOCK_OK));
    CHECK(try_lock() == REDLOCK_BUSY);
    ALL(redlock_testing_release_all(nodes[i]));
    CHECK(try_lock() == REDLOCK_OK);
}

static void faults(void)
{
    ALL(CHECK(redlock_testing_refuse(nodes[i], "NOPERM no") == REDLOCK_OK));
    CHECK(try_lock() == REDLOCK_UNAVAILABLE && redlock_last_is_permanent());
    ALL(redlock_testing_recover(nodes[i]));
    lock_within_20_s();
    redlock_testing_answer_late(nodes[0], 5000);
    /* Another one may still have the release before it. */
    lock_within_20_s();
    redlock_testing_be_silent(nodes[1]);
    CHECK(try_lock() == REDLOCK_UNAVAILABLE);
    redlock_testing_go_down(nodes[1]);
    CHECK(try_lock() == REDLOCK_UNAVAILABLE);
    ALL(redlock_testing_recover(nodes[i]));
    lock_within_20_s();
    ALL(redlock_testing_close_connections(nodes[i]));
    lock_within_20_s();
    ALL(CHECK(redlock_testing_hold(nodes[i], NAME, LEN, NULL, UINT64_MAX) == REDLOCK_OK));
    ALL(redlock_testing_forget(nodes[i]));
    CHECK(redlock_testing_held_ms(nodes[0], NAME, LEN) == 0);
    lock_within_20_s();
}

static void requests(void)
{
    CHECK(redlock_testing_requests(nodes[0], REDLOCK_TESTING_ACQUIRE) > 5);
    CHECK(redlock_testing_requests(nodes[0], REDLOCK_TESTING_RELEASE) > 5);
    CHECK(redlock_testing_requests(nodes[0], REDLOCK_TESTING_EXTEND) == 0);
    CHECK(redlock_testing_requests(nodes[0], REDLOCK_TESTING_FENCE) == 0);
    CHECK(redlock_testing_requests(nodes[0], REDLOCK_TESTING_OTHER) > 0);
    CHECK(redlock_testing_requests(nodes[0], REDLOCK_TESTING_CONNECTIONS) > 1);
    CHECK(redlock_testing_requests(nodes[0], 99) == 0);
}

static void nothing(void)
{
    CHECK(redlock_testing_start(NULL) == REDLOCK_CONFIG);
    CHECK(redlock_testing_url(NULL, NULL, 0) == 0);
    CHECK(redlock_testing_hold(NULL, NAME, LEN, "", TTL) == REDLOCK_CONFIG);
    CHECK(redlock_testing_hold(nodes[0], NULL, LEN, "", TTL) == REDLOCK_CONFIG);
    CHECK(redlock_testing_hold(nodes[0], NAME, LEN, "a\nb", TTL) == REDLOCK_CONFIG);
    CHECK(redlock_testing_release(NULL, NAME, LEN) == 0);
    CHECK(redlock_testing_hold_all(NULL) == REDLOCK_CONFIG);
    redlock_testing_release_all(NULL);
    CHECK(redlock_testing_held_ms(NULL, NAME, LEN) == 0);
    CHECK(redlock_testing_label(NULL, NAME, LEN, NULL, 0) == 0);
    CHECK(redlock_testing_waiting(NULL, NAME, LEN) == 0);
    CHECK(redlock_testing_token(NULL, NAME, LEN, NULL, 0) == 0);
    CHECK(redlock_testing_refuse(NULL, NULL) == REDLOCK_CONFIG);
    redlock_testing_advance(NULL, 1);
    redlock_testing_answer_late(NULL, 1);
    redlock_testing_be_silent(NULL);
    redlock_testing_go_down(NULL);
    redlock_testing_recover(NULL);
    redlock_testing_close_connections(NULL);
    redlock_testing_forget(NULL);
    CHECK(redlock_testing_requests(NULL, REDLOCK_TESTING_ACQUIRE) == 0);
    redlock_testing_free(NULL);
}

int main(void)
{
    start();
    holders();
    faults();
    requests();
    nothing();
    redlock_free(redlock);
    ALL(redlock_testing_free(nodes[i]));
    puts("ok");
    return 0;
}
