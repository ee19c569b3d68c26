/*
 * Every function of redlock.h, as a C program uses it. Also valid C++. tests/capi.rs compiles it, gives
 * it servers, and runs it.
 *
 *     capi URL1 URL2 URL3  TCP_URL TCP_PID  UNIX_URL UNIX_PID  PAIRS GROWTH_KIB
 *     capi URL RESOURCE
 *
 * The second one holds a lock. It prints "held", and goes on when a line of input comes: the lock may be elsewhere by then.
 *
 * The servers with a process id will be frozen and killed. GROWTH_KIB is how much memory so many pairs
 * of acquire and release may cost; 0: do not look (sanitizers keep what is freed).
 */

#define _POSIX_C_SOURCE 200809L

#include "redlock.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TTL 60000
#define TWENTY_SECONDS 20000
/* For locks that shall end, or be renewed: short, and longer than a busy machine stands still. */
#define SHORT 4000

/* Whether the sentence of the last failure has this part. */
static int last_error_has(const char *part)
{
    char text[1000];

    redlock_last_error(text, sizeof text);
    return strstr(text, part) != NULL;
}

static void fail(int line, const char *what, int status)
{
    char text[1000];

    redlock_last_error(text, sizeof text);
    fprintf(stderr, "capi.c:%d: %s: status %d (%s); last error: %s\n", line, what, status,
            redlock_status_string(status), text);
    abort();
}

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition, 0))
/* That a call returns this status, whose name stands in no sentence: they are printed side by side. */
#define IS(expected, call)                                                                         \
    do {                                                                                           \
        int is_status = (call);                                                                    \
        if (is_status != (expected))                                                               \
            fail(__LINE__, #call " is " #expected, is_status);                                     \
        if (is_status != REDLOCK_OK && last_error_has(redlock_status_string(is_status)))           \
            fail(__LINE__, "said twice", is_status);                                               \
    } while (0)
#define OK(call) IS(REDLOCK_OK, call)
/* Waits for a condition that must come true. */
#define EVENTUALLY(condition)                                                                      \
    do {                                                                                           \
        int eventually_left = 10000;                                                               \
        while (!(condition)) {                                                                     \
            if (eventually_left-- == 0)                                                            \
                fail(__LINE__, "not in time: " #condition, 0);                                     \
            pause_ms(2);                                                                           \
        }                                                                                          \
    } while (0)

static void pause_ms(long ms)
{
    struct timespec time;

    time.tv_sec = ms / 1000;
    time.tv_nsec = ms % 1000 * 1000000;
    nanosleep(&time, NULL);
}

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = 0;

    CHECK(dir != NULL);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* A counter for several threads. */
typedef struct {
    pthread_mutex_t mutex;
    int value;
} counter_t;

static int add(counter_t *counter, int by)
{
    int value;

    pthread_mutex_lock(&counter->mutex);
    value = counter->value += by;
    pthread_mutex_unlock(&counter->mutex);
    return value;
}

#define COUNTER {PTHREAD_MUTEX_INITIALIZER, 0}

/* Patient with a busy machine, quick at retrying. */
static redlock_t *client(const char *const *urls, size_t n)
{
    redlock_t *redlock = NULL;

    OK(redlock_new(urls, n, &redlock));
    CHECK(redlock != NULL);
    OK(redlock_set(redlock, REDLOCK_OPTION_NODE_TIMEOUT_MS, 2000));
    OK(redlock_set(redlock, REDLOCK_OPTION_CONNECT_TIMEOUT_MS, 5000));
    OK(redlock_set(redlock, REDLOCK_OPTION_RETRY_DELAY_MIN_MS, 1));
    OK(redlock_set(redlock, REDLOCK_OPTION_RETRY_DELAY_MAX_MS, 10));
    OK(redlock_set(redlock, REDLOCK_OPTION_WAIT_MS, TWENTY_SECONDS));
    return redlock;
}

static redlock_lock_t *take(redlock_t *redlock, const char *resource, uint64_t ttl_ms)
{
    redlock_lock_t *lock = NULL;

    OK(redlock_acquire(redlock, resource, strlen(resource), ttl_ms, &lock));
    CHECK(lock != NULL);
    return lock;
}

static redlock_lock_t *take_kept(redlock_t *redlock, const char *resource, uint64_t ttl_ms,
                                 uint64_t max_hold_ms)
{
    redlock_lock_t *lock = take(redlock, resource, ttl_ms);

    OK(redlock_lock_keep_alive(lock, max_hold_ms));
    return lock;
}

/* The same lock once more, as if handed over. */
static redlock_lock_t *twin(redlock_t *redlock, const redlock_lock_t *lock)
{
    uint8_t token[REDLOCK_TOKEN_SIZE];
    char resource[100];
    redlock_lock_t *other = NULL;
    size_t len = redlock_lock_resource(lock, resource, sizeof resource);

    CHECK(redlock_lock_token(lock, token, sizeof token) == sizeof token);
    OK(redlock_resume(redlock, resource, len, token, redlock_lock_remaining_ms(lock), &other));
    return other;
}

static void version_and_codes(void)
{
    static const int codes[] = {
        REDLOCK_OK,        REDLOCK_BUSY,        REDLOCK_LOST,
        REDLOCK_TOO_SLOW,  REDLOCK_UNAVAILABLE, REDLOCK_EXTENSION_LIMIT,
        REDLOCK_CANCELLED, REDLOCK_CONFIG,      REDLOCK_RANDOM,
        REDLOCK_PANIC,     REDLOCK_OTHER_KIND};
    static const int strange[] = {-1, 11, 1000, 2147483647, -2147483647 - 1};
    const char *unknown = redlock_status_string(-1);
    char version[40];
    size_t i, k;

    CHECK(redlock_version_number() == REDLOCK_VERSION_NUMBER);
    CHECK(strcmp(redlock_version_string(), REDLOCK_VERSION_STRING) == 0);
    snprintf(version, sizeof version, "%u.%u.%u", redlock_version_number() / 1000000,
             redlock_version_number() / 1000 % 1000, redlock_version_number() % 1000);
    CHECK(strcmp(version, REDLOCK_VERSION_STRING) == 0);

    CHECK(strcmp(redlock_status_string(REDLOCK_TOO_SLOW), "TOO_SLOW") == 0);
    for (i = 0; i < sizeof codes / sizeof *codes; i++) {
        CHECK(codes[i] == (int)i);
        CHECK(strcmp(redlock_status_string(codes[i]), unknown) != 0);
        for (k = 0; k < i; k++)
            CHECK(strcmp(redlock_status_string(codes[i]), redlock_status_string(codes[k])) != 0);
    }
    for (i = 0; i < sizeof strange / sizeof *strange; i++)
        CHECK(strcmp(redlock_status_string(strange[i]), unknown) == 0);
}

static int always(void *user)
{
    (void)user;
    return 1;
}

static void count_loss(int reason, void *user)
{
    (void)reason;
    add((counter_t *)user, 1);
}

typedef struct {
    redlock_lock_t *lock;
    counter_t calls;
    uint64_t left;
    int status;
} warning_t;

/* The lock cannot be used here. */
static void on_expiring(uint64_t left_ms, void *user)
{
    warning_t *warning = (warning_t *)user;

    warning->left = left_ms;
    warning->status = redlock_lock_release(warning->lock);
    add(&warning->calls, 1);
}

static void null_is_never_a_crash(redlock_t *redlock, const char *const *urls)
{
    static const char *const hole[] = {"redis://10.0.0.1", NULL};
    const void *const names[] = {"a", "b", NULL};
    const size_t lens[] = {1, 1, 1};
    uint8_t token[REDLOCK_TOKEN_SIZE] = {0};
    redlock_t *no_redlock = (redlock_t *)&token;
    redlock_lock_t *lock = (redlock_lock_t *)&token;
    char text[10];

    IS(REDLOCK_CONFIG, redlock_new(NULL, 3, &no_redlock));
    CHECK(no_redlock == NULL && last_error_has("urls is NULL"));
    IS(REDLOCK_CONFIG, redlock_new(urls, 3, NULL));
    IS(REDLOCK_CONFIG, redlock_new(hole, 2, &no_redlock));
    CHECK(last_error_has("node 1 is NULL"));
    IS(REDLOCK_CONFIG, redlock_set(NULL, REDLOCK_OPTION_WAIT_MS, 1));
    IS(REDLOCK_CONFIG, redlock_set_tls(NULL, NULL, 0, NULL, 0, NULL, 0, NULL));
    IS(REDLOCK_CONFIG, redlock_set_tls(redlock, "no certificate", 14, NULL, 0, NULL, 0, NULL));
    IS(REDLOCK_CONFIG, redlock_set_tls(redlock, NULL, 0, "no certificate", 14, NULL, 0, NULL));
    IS(REDLOCK_CONFIG, redlock_set_tls(redlock, NULL, 0, NULL, 0, "no key", 6, NULL));
    IS(REDLOCK_CONFIG, redlock_set_tls(redlock, NULL, 0, NULL, 0, NULL, 0, "no name"));
    OK(redlock_set_tls(redlock, NULL, 0, NULL, 0, NULL, 0, NULL));
    IS(REDLOCK_CONFIG, redlock_connect(NULL));
    redlock_free(NULL);

    IS(REDLOCK_CONFIG, redlock_try_acquire(NULL, "a", 1, TTL, &lock));
    CHECK(lock == NULL && last_error_has("redlock is NULL"));
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, NULL, 1, TTL, &lock));
    CHECK(last_error_has("resource is NULL"));
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, "a", 1, TTL, NULL));
    CHECK(last_error_has("out is NULL"));
    IS(REDLOCK_CONFIG, redlock_acquire(NULL, "a", 1, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire(redlock, NULL, 1, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire(redlock, "a", 1, TTL, NULL));
    IS(REDLOCK_CONFIG, redlock_acquire_within(NULL, "a", 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_within(redlock, NULL, 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_within(redlock, "a", 1, TTL, 1, NULL));
    IS(REDLOCK_CONFIG, redlock_acquire_reentrant(NULL, "a", 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_reentrant(redlock, NULL, 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_reentrant(redlock, "a", 1, TTL, 1, NULL));
    CHECK(redlock_lock_depth(NULL) == 0);
    IS(REDLOCK_CONFIG, redlock_acquire_permit(NULL, "a", 1, 2, TTL, 1, &lock));
    CHECK(lock == NULL);
    IS(REDLOCK_CONFIG, redlock_acquire_permit(redlock, NULL, 1, 2, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_permit(redlock, "a", 1, 2, TTL, 1, NULL));
    IS(REDLOCK_CONFIG, redlock_acquire_permit(redlock, "a", 1, 0, TTL, 1, &lock));
    CHECK(last_error_has("0 permits: it must be 1 to 1000"));
    IS(REDLOCK_CONFIG, redlock_acquire_read(NULL, "a", 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_read(redlock, NULL, 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_read(redlock, "a", 1, TTL, 1, NULL));
    IS(REDLOCK_CONFIG, redlock_acquire_write(NULL, "a", 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_write(redlock, NULL, 1, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_write(redlock, "a", 1, TTL, 1, NULL));
    IS(REDLOCK_CONFIG, redlock_acquire_several(NULL, names, lens, 2, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_several(redlock, NULL, lens, 2, TTL, 1, &lock));
    CHECK(last_error_has("resources is NULL"));
    IS(REDLOCK_CONFIG, redlock_acquire_several(redlock, names, NULL, 2, TTL, 1, &lock));
    CHECK(last_error_has("resource_lens is NULL"));
    IS(REDLOCK_CONFIG, redlock_acquire_several(redlock, names, lens, 3, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_several(redlock, names, lens, 0, TTL, 1, &lock));
    CHECK(last_error_has("no resources given"));
    IS(REDLOCK_CONFIG, redlock_acquire_several(redlock, names, lens, SIZE_MAX, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_several(redlock, names, lens, 2, TTL, 1, NULL));
    CHECK(redlock_lock_slot(NULL) == -1);
    IS(REDLOCK_CONFIG, redlock_acquire_while(NULL, "a", 1, TTL, always, NULL, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_while(redlock, NULL, 1, TTL, always, NULL, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_while(redlock, "a", 1, TTL, NULL, NULL, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_while(redlock, "a", 1, TTL, always, NULL, NULL));
    IS(REDLOCK_CONFIG, redlock_resume(NULL, "a", 1, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume(redlock, NULL, 1, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume(redlock, "a", 1, NULL, TTL, &lock));
    CHECK(last_error_has("token is NULL"));
    IS(REDLOCK_CONFIG, redlock_resume(redlock, "a", 1, token, TTL, NULL));
    IS(REDLOCK_CONFIG, redlock_resume_permit(NULL, "a", 1, 2, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_permit(redlock, NULL, 1, 2, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_permit(redlock, "a", 1, 2, NULL, TTL, &lock));
    CHECK(last_error_has("token is NULL"));
    IS(REDLOCK_CONFIG, redlock_resume_permit(redlock, "a", 1, 2, token, UINT64_MAX, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_permit(redlock, "a", 1, 2, token, TTL, NULL));
    IS(REDLOCK_CONFIG, redlock_resume_read(NULL, "a", 1, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_read(redlock, NULL, 1, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_read(redlock, "a", 1, NULL, TTL, &lock));
    CHECK(last_error_has("token is NULL"));
    IS(REDLOCK_CONFIG, redlock_resume_read(redlock, "a", 1, token, UINT64_MAX, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_read(redlock, "a", 1, token, TTL, NULL));
    IS(REDLOCK_CONFIG, redlock_resume_write(NULL, "a", 1, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_write(redlock, NULL, 1, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_write(redlock, "a", 1, NULL, TTL, &lock));
    CHECK(last_error_has("token is NULL"));
    IS(REDLOCK_CONFIG, redlock_resume_write(redlock, "a", 1, token, UINT64_MAX, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_write(redlock, "a", 1, token, TTL, NULL));
    IS(REDLOCK_CONFIG, redlock_resume_several(NULL, names, lens, 2, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_several(redlock, NULL, lens, 2, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_several(redlock, names, lens, 2, NULL, TTL, &lock));
    CHECK(last_error_has("token is NULL"));
    IS(REDLOCK_CONFIG, redlock_resume_several(redlock, names, lens, 2, token, UINT64_MAX, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_several(redlock, names, lens, 2, token, TTL, NULL));
    IS(REDLOCK_CONFIG, redlock_resume_permit(redlock, "a", 1, 0, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume_several(redlock, names, lens, 0, token, TTL, &lock));

    CHECK(redlock_lock_remaining_ms(NULL) == 0);
    CHECK(redlock_lock_is_valid(NULL) == 0);
    IS(REDLOCK_CONFIG, redlock_lock_ensure(NULL, 0));
    CHECK(redlock_lock_extensions_left(NULL) == 0);
    CHECK(redlock_lock_token(NULL, token, sizeof token) == 0);
    CHECK(redlock_lock_resource(NULL, text, sizeof text) == 0);
    IS(REDLOCK_CONFIG, redlock_lock_extend(NULL, TTL));
    OK(redlock_lock_release(NULL));
    OK(redlock_lock_leak(NULL));
    OK(redlock_lock_leak_for(NULL, TTL));
    IS(REDLOCK_CONFIG, redlock_lock_keep_alive(NULL, TTL));
    IS(REDLOCK_CONFIG, redlock_lock_stop(NULL));
    CHECK(redlock_lock_hold_left_ms(NULL) == 0);
    IS(REDLOCK_CONFIG, redlock_lock_wait_lost(NULL, 0));
    CHECK(redlock_lock_lost_reason(NULL) == REDLOCK_REASON_NONE);
    IS(REDLOCK_CONFIG, redlock_lock_on_lost(NULL, count_loss, NULL));
    IS(REDLOCK_CONFIG, redlock_lock_on_expiring(NULL, 0, on_expiring, NULL));
    CHECK(redlock_lock_since_renewal_ms(NULL) == 0 && redlock_last_lost_reason() == REDLOCK_REASON_NONE);
    CHECK(last_error_has("lock is NULL"));

    /* Where NULL buffers are allowed. */
    CHECK(redlock_last_error(NULL, 0) == strlen("lock is NULL"));
    CHECK(redlock_last_error(NULL, 10) == strlen("lock is NULL"));
    memset(text, 'x', sizeof text);
    CHECK(redlock_last_error(text, 5) == strlen("lock is NULL"));
    CHECK(strcmp(text, "lock") == 0 && text[5] == 'x');
    CHECK(redlock_last_error(text, 0) == strlen("lock is NULL") && text[0] == 'l');

    lock = take(redlock, "null", TTL);
    CHECK(redlock_lock_token(lock, NULL, 0) == REDLOCK_TOKEN_SIZE);
    CHECK(redlock_lock_token(lock, NULL, 20) == REDLOCK_TOKEN_SIZE);
    CHECK(redlock_lock_resource(lock, NULL, 0) == 4);
    OK(redlock_lock_keep_alive(lock, TTL));
    IS(REDLOCK_CONFIG, redlock_lock_on_lost(lock, NULL, NULL));
    OK(redlock_lock_release(lock));
}

static void wrong_values(redlock_t *redlock, const char *const *urls)
{
    static const char *const bad[] = {"http://:hunter2@10.0.0.1"};
    static const char *const bad_cluster[] = {"redis+cluster://:hunter2@a,,b"};
    static const char *const cluster_twice[] = {"redis+cluster://a,b", "valkey-cluster://b,a"};
    static const char *const not_text[] = {"redis://\xff"};
    static const char big[65537] = "";
    const char *twice[2];
    uint8_t token[REDLOCK_TOKEN_SIZE] = {0};
    redlock_t *other = NULL;
    redlock_lock_t *lock = NULL;

    IS(REDLOCK_CONFIG, redlock_new(urls, 0, &other));
    IS(REDLOCK_CONFIG, redlock_new(urls, (size_t)-1, &other));
    IS(REDLOCK_CONFIG, redlock_new(bad, 1, &other));
    CHECK(last_error_has("node 0: the scheme must be") && !last_error_has("hunter2"));
    CHECK(last_error_has("write redis://host:port"));
    IS(REDLOCK_CONFIG, redlock_new(bad_cluster, 1, &other));
    CHECK(last_error_has("write redis+cluster://host:6379,host:6379") && !last_error_has("hunter2"));
    IS(REDLOCK_CONFIG, redlock_new(cluster_twice, 2, &other));
    CHECK(last_error_has("cluster of b:6379,a:6379"));
    IS(REDLOCK_CONFIG, redlock_new(not_text, 1, &other));
    twice[0] = twice[1] = urls[0];
    IS(REDLOCK_CONFIG, redlock_new(twice, 2, &other));
    CHECK(other == NULL);

    IS(REDLOCK_CONFIG, redlock_set(redlock, 0, 1));
    IS(REDLOCK_CONFIG, redlock_set(redlock, -1, 1));
    IS(REDLOCK_CONFIG, redlock_set(redlock, 99, 1));
    CHECK(last_error_has("no option 99"));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_NODE_TIMEOUT_MS, 0));
    CHECK(last_error_has("node_timeout"));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_NODE_TIMEOUT_MS, UINT64_MAX));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_CONNECT_TIMEOUT_MS, 0));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_CONNECT_TIMEOUT_MS, 3600001));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_MAX_EXTENSIONS, 4294967296ull));

    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, "", 0, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, NULL, 0, TTL, &lock));
    CHECK(last_error_has("0 bytes"));
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, big, sizeof big, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, "a", (size_t)-1, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire(redlock, "", 0, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_within(redlock, "", 0, TTL, 1, &lock));
    IS(REDLOCK_CONFIG, redlock_acquire_while(redlock, "", 0, TTL, always, NULL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume(redlock, "", 0, token, TTL, &lock));
    IS(REDLOCK_CONFIG, redlock_resume(redlock, "a", 1, token, UINT64_MAX, &lock));
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, "a", 1, 0, &lock));
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, "a", 1, UINT64_MAX, &lock));
    CHECK(lock == NULL);

    lock = take(redlock, "a", TTL);
    IS(REDLOCK_CONFIG, redlock_lock_extend(lock, 0));
    IS(REDLOCK_CONFIG, redlock_lock_extend(lock, UINT64_MAX));
    IS(REDLOCK_CONFIG, redlock_lock_stop(lock));
    IS(REDLOCK_CONFIG, redlock_lock_wait_lost(lock, 0));
    IS(REDLOCK_CONFIG, redlock_lock_on_lost(lock, count_loss, NULL));
    CHECK(redlock_lock_hold_left_ms(lock) == 0);
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_NONE);
    OK(redlock_lock_release(lock));
}

static void options_work(const char *const *urls)
{
    redlock_t *redlock = client(urls, 3);
    redlock_lock_t *lock, *other, *none = NULL;
    uint64_t fence, again, left;
    char text[64];

    OK(redlock_set(redlock, REDLOCK_OPTION_MAX_EXTENSIONS, 1));
    lock = take(redlock, "options", TTL);
    CHECK(redlock_lock_extensions_left(lock) == 1);
    OK(redlock_lock_extend(lock, 2 * TTL));
    CHECK(redlock_lock_extensions_left(lock) == 0);
    CHECK(redlock_lock_remaining_ms(lock) > TTL);
    IS(REDLOCK_EXTENSION_LIMIT, redlock_lock_extend(lock, TTL));
    CHECK(last_error_has("limit of 1"));
    CHECK(redlock_lock_is_valid(lock));
    OK(redlock_set(redlock, REDLOCK_OPTION_MAX_EXTENSIONS, UINT32_MAX));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_RESTART_GUARD_MS, 2));
    CHECK(redlock_last_retry_after_ms() == 0);
    OK(redlock_set(redlock, REDLOCK_OPTION_RESTART_GUARD_MS, 0));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_FAIR, 2));
    CHECK(last_error_has("fair is 2"));
    OK(redlock_set(redlock, REDLOCK_OPTION_FAIR, 1));
    OK(redlock_try_acquire(redlock, "fair", 4, TTL, &other));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "fair", 4, TTL, &none));
    CHECK(none == NULL);
    OK(redlock_lock_release(other));
    OK(redlock_set(redlock, REDLOCK_OPTION_FAIR, 0));
    CHECK(redlock_lock_extensions_left(lock) == 0);

    /* A number that the next holder's is larger than. */
    OK(redlock_lock_fencing_token(lock, &fence));
    CHECK(fence > 0);
    OK(redlock_lock_fencing_token(lock, &again));
    CHECK(again == fence);
    IS(REDLOCK_CONFIG, redlock_lock_fencing_token(lock, NULL));
    IS(REDLOCK_CONFIG, redlock_lock_fencing_token(NULL, &again));
    CHECK(again == 0);
    other = take(redlock, "fence kept", TTL);
    OK(redlock_lock_keep_alive(other, 10 * TTL));
    OK(redlock_lock_fencing_token(other, &again));
    CHECK(again > 0);
    OK(redlock_lock_release(other));
    /* Work that is done once in a period. */
    other = take(redlock, "nightly", TTL);
    OK(redlock_inspect_last_run(redlock, "nightly", 7, text, sizeof text, &again, &fence, &left));
    CHECK(again == 0 && fence == 0 && left == 0 && text[0] == 0);
    OK(redlock_lock_mark_done(other, 10 * TTL, 1500));
    OK(redlock_inspect_last_run(redlock, "nightly", 7, NULL, 0, &again, &fence, &left));
    CHECK(again > 1700000000000 && fence == 1500 && left > 9 * TTL && left <= 10 * TTL - 1500);
    OK(redlock_inspect_last_run(redlock, "nightly", 7, text, sizeof text, &again, NULL, NULL));
    IS(REDLOCK_CONFIG, redlock_inspect_last_run(redlock, "nightly", 7, NULL, 0, NULL, NULL, &left));
    CHECK(left == 0);
    IS(REDLOCK_CONFIG, redlock_inspect_last_run(NULL, "nightly", 7, NULL, 0, &again, NULL, NULL));
    IS(REDLOCK_CONFIG, redlock_lock_mark_done(NULL, TTL, 0));
    IS(REDLOCK_CONFIG, redlock_lock_mark_done(other, 1500, 10 * TTL));
    CHECK(last_error_has("nothing is left of the period"));
    OK(redlock_lock_release(other));
    other = take(redlock, "fence lost", 10);
    sleep(1);
    IS(REDLOCK_LOST, redlock_lock_fencing_token(other, &again));
    CHECK(again == 0);
    CHECK(redlock_lock_lost_reason(other) == REDLOCK_REASON_EXPIRED);
    IS(REDLOCK_LOST, redlock_lock_release(other));
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_EXPIRED);
    IS(REDLOCK_CONFIG, redlock_try_acquire(NULL, "a", 1, TTL, &other));
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_NONE);

    /* With a wait of zero, acquire tries once. */
    OK(redlock_set(redlock, REDLOCK_OPTION_WAIT_MS, 0));
    IS(REDLOCK_BUSY, redlock_acquire(redlock, "options", 7, TTL, &other));
    CHECK(other == NULL);
    OK(redlock_set(redlock, REDLOCK_OPTION_WAIT_MS, UINT64_MAX));
    /* Minimum past the maximum, and back. */
    OK(redlock_set(redlock, REDLOCK_OPTION_RETRY_DELAY_MIN_MS, 1000));
    OK(redlock_set(redlock, REDLOCK_OPTION_RETRY_DELAY_MAX_MS, 1));
    OK(redlock_lock_release(lock));
    lock = take(redlock, "options", TTL);
    OK(redlock_lock_release(lock));
    redlock_free(redlock);
}

static int count_down(void *user)
{
    int *left = (int *)user;

    return (*left)-- > 0;
}

static void acquire_ask_extend_release(redlock_t *redlock)
{
    char text[100];
    uint8_t token[REDLOCK_TOKEN_SIZE + 1];
    redlock_lock_t *lock, *other;
    int left;

    lock = NULL;
    OK(redlock_try_acquire(redlock, "a", 1, TTL, &lock));
    CHECK(redlock_lock_is_valid(lock) == 1);
    CHECK(redlock_lock_remaining_ms(lock) > TTL / 2);
    CHECK(redlock_lock_remaining_ms(lock) <= TTL - TTL / 100 - 2);
    OK(redlock_lock_ensure(lock, TTL / 2));
    IS(REDLOCK_TOO_SLOW, redlock_lock_ensure(lock, TTL));
    CHECK(redlock_lock_extensions_left(lock) == 10);

    other = lock;
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "a", 1, TTL, &other));
    CHECK(other == NULL && last_error_has("this program itself has the lock \"a\""));
    IS(REDLOCK_BUSY, redlock_acquire_within(redlock, "a", 1, TTL, 0, &other));
    IS(REDLOCK_BUSY, redlock_acquire_within(redlock, "a", 1, TTL, 20, &other));
    left = 3;
    IS(REDLOCK_CANCELLED,
       redlock_acquire_while(redlock, "a", 1, TTL, count_down, &left, &other));
    CHECK(other == NULL && left == -1);
    CHECK(last_error_has("told to stop waiting for the lock \"a\""));

    OK(redlock_lock_extend(lock, 2 * TTL));
    CHECK(redlock_lock_remaining_ms(lock) > TTL);
    CHECK(redlock_lock_extensions_left(lock) == 9);
    OK(redlock_lock_extend(lock, TTL));
    CHECK(redlock_lock_remaining_ms(lock) > TTL);
    OK(redlock_lock_release(lock));

    OK(redlock_acquire_within(redlock, "a", 1, TTL, TWENTY_SECONDS, &lock));
    OK(redlock_lock_release(lock));
    OK(redlock_acquire_while(redlock, "a", 1, TTL, always, NULL, &lock));

    /* Handed over, to a handle that does not know of the other's end. */
    other = twin(redlock, lock);
    memset(token, 0, sizeof token);
    CHECK(redlock_lock_token(lock, token, 5) == REDLOCK_TOKEN_SIZE && token[5] == 0);
    CHECK(redlock_lock_token(lock, token, sizeof token) == REDLOCK_TOKEN_SIZE);
    CHECK(token[REDLOCK_TOKEN_SIZE] == 0);
    redlock_lock_leak(lock);
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "a", 1, TTL, &lock));
    lock = twin(redlock, other);
    OK(redlock_lock_extend(other, TTL));
    OK(redlock_lock_release(other));
    IS(REDLOCK_LOST, redlock_lock_extend(lock, TTL));
    CHECK(redlock_lock_is_valid(lock) == 0 && redlock_lock_remaining_ms(lock) == 0);
    IS(REDLOCK_LOST, redlock_lock_ensure(lock, 0));
    IS(REDLOCK_LOST, redlock_lock_keep_alive(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_release(lock));

    /* Expired. */
    lock = take(redlock, "a", SHORT);
    EVENTUALLY(!redlock_lock_is_valid(lock));
    IS(REDLOCK_LOST, redlock_lock_ensure(lock, 0));
    IS(REDLOCK_LOST, redlock_lock_release(lock));

    /* Any bytes. */
    OK(redlock_try_acquire(redlock, "x\0y\xff", 4, TTL, &lock));
    OK(redlock_try_acquire(redlock, "x\0z\xff", 4, TTL, &other));
    memset(text, 'x', sizeof text);
    CHECK(redlock_lock_resource(lock, text, sizeof text) == 4);
    CHECK(memcmp(text, "x\0y\xffx", 5) == 0);
    CHECK(redlock_lock_resource(other, text, 3) == 4);
    CHECK(memcmp(text, "x\0z\xffx", 5) == 0);
    OK(redlock_lock_release(lock));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "x\0z\xff", 4, TTL, &lock));
    OK(redlock_lock_release(other));

    /* A throttle. */
    OK(redlock_lock_leak(take(redlock, "throttle", SHORT)));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "throttle", 8, TTL, &lock));

    /* For a shorter time than the ttl, also where it was kept alive; with none it is released. */
    lock = take(redlock, "a", TTL);
    OK(redlock_lock_keep_alive(lock, TTL));
    OK(redlock_lock_leak_for(lock, SHORT));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "a", 1, TTL, &lock));
    OK(redlock_acquire_within(redlock, "a", 1, TTL, TWENTY_SECONDS, &lock));
    OK(redlock_lock_leak_for(lock, 0));
    lock = take(redlock, "a", SHORT);
    EVENTUALLY(!redlock_lock_is_valid(lock));
    IS(REDLOCK_LOST, redlock_lock_leak_for(lock, SHORT));
}

/* What a callback saw and did. */
typedef struct {
    counter_t begun, done;
    redlock_lock_t *lock;
    redlock_t *redlock;
    pthread_t thread;
    int reason;
} loss_t;

static void loss_init(loss_t *loss, redlock_t *redlock, redlock_lock_t *lock)
{
    memset(loss, 0, sizeof *loss);
    pthread_mutex_init(&loss->begun.mutex, NULL);
    pthread_mutex_init(&loss->done.mutex, NULL);
    loss->redlock = redlock;
    loss->lock = lock;
}

static void on_lost(int reason, void *user)
{
    loss_t *loss = (loss_t *)user;
    redlock_lock_t *lock = loss->lock;
    uint8_t token[REDLOCK_TOKEN_SIZE];

    loss->reason = reason;
    loss->thread = pthread_self();
    add(&loss->begun, 1);
    CHECK(redlock_last_error(NULL, 0) == 0);

    /* Its own lock is lost, whatever it calls. */
    CHECK(redlock_lock_is_valid(lock) == 0 && redlock_lock_remaining_ms(lock) == 0);
    IS(REDLOCK_LOST, redlock_lock_ensure(lock, 0));
    IS(REDLOCK_LOST, redlock_lock_extend(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_wait_lost(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_keep_alive(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_on_lost(lock, on_lost, user));
    IS(REDLOCK_LOST, redlock_lock_stop(lock));
    IS(REDLOCK_CONFIG, redlock_lock_release(lock));
    IS(REDLOCK_CONFIG, redlock_lock_leak(lock));
    IS(REDLOCK_CONFIG, redlock_lock_leak_for(lock, TTL));
    CHECK(redlock_lock_token(lock, token, sizeof token) == sizeof token);

    /* Others are not. */
    lock = take(loss->redlock, "taken by a callback", TTL);
    OK(redlock_lock_ensure(lock, 1));
    OK(redlock_lock_release(lock));

    /* Whoever stops or ends the lock waits for this. */
    pause_ms(100);
    add(&loss->done, 1);
}

typedef struct {
    counter_t count[REDLOCK_EVENT_NODE_BACK + 1];
    counter_t ending[REDLOCK_ENDING_WAS_LOST + 1];
    counter_t reason, busy, unavailable, renewals, refused, wrong;
    redlock_t *redlock;
    redlock_lock_t *lock;
} events_t;

/* A lock is in a call, which would wait for itself, or free it a second time. */
static void is_in_a_call(events_t *events)
{
    add(&events->wrong, redlock_lock_ensure(events->lock, 0) != REDLOCK_CONFIG);
    add(&events->wrong, redlock_lock_remaining_ms(events->lock) != 0);
    add(&events->wrong, redlock_lock_extend(events->lock, TTL) != REDLOCK_CONFIG);
    add(&events->wrong, redlock_lock_leak(events->lock) != REDLOCK_CONFIG);
    add(&events->wrong, redlock_lock_leak_for(events->lock, 1) != REDLOCK_CONFIG);
    add(&events->wrong, redlock_lock_release(events->lock) != REDLOCK_CONFIG);
    add(&events->refused, 1);
}

static void on_event(const redlock_event_t *event, void *user)
{
    events_t *events = (events_t *)user;
    int of_node = event->kind >= REDLOCK_EVENT_NODE_AWAY;

    add(&events->count[event->kind], 1);
    switch (event->kind) {
    case REDLOCK_EVENT_ACQUIRED:
        add(&events->wrong, event->attempts < 1 || event->why != 0 || event->time_us == 0);
        break;
    case REDLOCK_EVENT_NOT_ACQUIRED:
        add(&events->busy, event->why == REDLOCK_BUSY && strstr(event->text, " has the lock") != NULL);
        add(&events->unavailable, event->why == REDLOCK_UNAVAILABLE && event->text[0] != 0);
        break;
    case REDLOCK_EVENT_EXTENDED:
    case REDLOCK_EVENT_NOT_EXTENDED:
        add(&events->renewals, event->renewal);
        if (!event->renewal && events->lock != NULL)
            is_in_a_call(events);
        break;
    case REDLOCK_EVENT_LOST:
        add(&events->reason, event->why);
        break;
    case REDLOCK_EVENT_ENDED:
        add(&events->ending[event->why], 1);
        if (events->lock != NULL)
            is_in_a_call(events);
        break;
    default:
        add(&events->wrong, event->node > 2 || strchr(event->address, ':') == NULL);
    }
    if (of_node)
        add(&events->wrong, event->resource != NULL || event->resource_len != 0);
    else
        add(&events->wrong, event->resource_len != 5 || memcmp(event->resource, "event", 5) != 0);
    /* It may use the library. */
    if (event->kind == REDLOCK_EVENT_ENDED)
        add(&events->wrong, redlock_set(events->redlock, REDLOCK_OPTION_MAX_EXTENSIONS, 10) != REDLOCK_OK);
}

static void events_are_told(const char *const *urls)
{
    static events_t events, away;
    static const char *const nowhere[] = {"redis://127.0.0.1:1"};
    redlock_t *redlock = client(urls, 3), *none;
    redlock_lock_t *lock, *other;
    int before;

    events.redlock = redlock;
    IS(REDLOCK_CONFIG, redlock_set_observer(NULL, on_event, &events));
    OK(redlock_set_observer(redlock, NULL, &events));
    OK(redlock_set_observer(redlock, on_event, &events));
    OK(redlock_connect(redlock));
    OK(redlock_acquire(redlock, "event", 5, TTL, &lock));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "event", 5, TTL, &other));
    events.lock = lock;
    OK(redlock_lock_extend(lock, TTL));
    CHECK(add(&events.refused, 0) == 1 && redlock_lock_remaining_ms(lock) > 0);
    OK(redlock_lock_release(lock));
    events.lock = NULL;
    CHECK(add(&events.refused, 0) == 2);
    OK(redlock_acquire(redlock, "event", 5, 3000, &lock));
    OK(redlock_lock_keep_alive(lock, 3500));
    IS(REDLOCK_LOST, redlock_lock_wait_lost(lock, 60000));
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    OK(redlock_acquire(redlock, "event", 5, 1500, &lock));
    events.lock = lock;
    redlock_lock_leak(lock);
    events.lock = NULL;
    CHECK(add(&events.refused, 0) == 3);
    EVENTUALLY(add(&events.count[REDLOCK_EVENT_ENDED], 0) == add(&events.count[REDLOCK_EVENT_ACQUIRED], 0));
    CHECK(add(&events.count[REDLOCK_EVENT_ACQUIRED], 0) == 3 && add(&events.busy, 0) == 1);
    CHECK(add(&events.count[REDLOCK_EVENT_NOT_ACQUIRED], 0) == 1);
    CHECK(add(&events.count[REDLOCK_EVENT_EXTENDED], 0) >= 2);
    CHECK(add(&events.renewals, 0) >= 1);
    CHECK(add(&events.reason, 0) == REDLOCK_REASON_HOLD_LIMIT);
    CHECK(add(&events.ending[REDLOCK_ENDING_RELEASED], 0) == 1);
    CHECK(add(&events.ending[REDLOCK_ENDING_WAS_LOST], 0) + add(&events.ending[REDLOCK_ENDING_LEAKED], 0) == 2);
    CHECK(REDLOCK_ENDING_NOT_CONFIRMED == 2 && REDLOCK_ENDING_DROPPED == 3);
    CHECK(add(&events.wrong, 0) == 0);
    /* No event after its end, also of a lock that was acquired before. */
    OK(redlock_acquire_within(redlock, "event", 5, TTL, TWENTY_SECONDS, &lock));
    OK(redlock_set_observer(redlock, NULL, NULL));
    before = add(&events.count[REDLOCK_EVENT_ENDED], 0);
    OK(redlock_lock_release(lock));
    CHECK(add(&events.count[REDLOCK_EVENT_ENDED], 0) == before);
    redlock_free(redlock);

    none = client(nowhere, 1);
    away.redlock = none;
    OK(redlock_set_observer(none, on_event, &away));
    IS(REDLOCK_UNAVAILABLE, redlock_try_acquire(none, "event", 5, TTL, &lock));
    EVENTUALLY(add(&away.count[REDLOCK_EVENT_NODE_AWAY], 0) == 1);
    CHECK(add(&away.unavailable, 0) == 1 && add(&away.count[REDLOCK_EVENT_NODE_BACK], 0) == 0);
    CHECK(add(&away.wrong, 0) == 0);
    redlock_free(none);
}

static void *wait_for_it(void *redlock)
{
    redlock_lock_t *lock;

    OK(redlock_acquire_within((redlock_t *)redlock, "shown", 5, TTL, TWENTY_SECONDS, &lock));
    OK(redlock_lock_release(lock));
    return NULL;
}

static int document_has(redlock_t *redlock, const char *part)
{
    char json[20000];
    size_t needed;

    OK(redlock_inspect_json(redlock, "shown", 5, json, sizeof json, &needed));
    return strstr(json, part) != NULL;
}

static void labels_and_what_is_shown(const char *const *urls)
{
    static const char label[] = "web-2:4711";
    static const char *const nowhere[] = {"redis://127.0.0.1:1"};
    redlock_t *labelled = client(urls, 3), *other = client(urls, 3);
    redlock_lock_t *lock;
    pthread_t waiter;
    char text[400], held[400], json[20000];
    uint64_t left = 0;
    size_t needed;
    int state = -1, fit = -1, broken = -1;

    IS(REDLOCK_CONFIG, redlock_set_label(NULL, label));
    IS(REDLOCK_CONFIG, redlock_set_label(labelled, "a\nb"));
    CHECK(last_error_has("printable"));
    IS(REDLOCK_CONFIG, redlock_set_label(labelled, "\xff"));
    OK(redlock_set_label(labelled, label));
    OK(redlock_inspect(labelled, "shown", 5, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_FREE && left == 0 && text[0] == 0);
    OK(redlock_try_acquire(labelled, "shown", 5, TTL, &lock));
    OK(redlock_inspect(labelled, "shown", 5, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_HELD && strstr(text, "(web-2:4711)") != NULL);
    CHECK(left > TTL / 2 && left <= TTL);
    OK(redlock_inspect(labelled, "shown", 5, NULL, 0, &left, &state));
    /* The same for programs: whole, or not at all. */
    OK(redlock_inspect_json(labelled, "shown", 5, json, sizeof json, &needed));
    CHECK(needed == strlen(json) + 1 && json[0] == '{' && json[needed - 2] == '}');
    CHECK(strstr(json, "\"label\":\"web-2:4711\"") != NULL && strstr(json, "\"name\":\"shown\"") != NULL);
    IS(REDLOCK_CONFIG, redlock_inspect_json(labelled, "shown", 5, json, 100, &needed));
    CHECK(needed > 100 && json[0] == 0 && last_error_has("room for 100"));
    IS(REDLOCK_CONFIG, redlock_inspect_json(labelled, "shown", 5, NULL, 0, &needed));
    CHECK(needed > 100);
    IS(REDLOCK_CONFIG, redlock_inspect_json(labelled, "", 0, json, sizeof json, &needed));
    CHECK(needed == 0 && json[0] == 0);
    IS(REDLOCK_CONFIG, redlock_inspect_json(labelled, "shown", 5, json, sizeof json, NULL));
    IS(REDLOCK_CONFIG, redlock_inspect_json(NULL, "shown", 5, json, sizeof json, &needed));
    IS(REDLOCK_CONFIG, redlock_check_json(NULL, "probe", 5, json, sizeof json, &needed));
    OK(redlock_check_json(labelled, "probe", 5, json, sizeof json, &needed));
    CHECK(needed == strlen(json) + 1 && strstr(json, "\"fit\":true") != NULL);
    OK(redlock_lock_leak_for(lock, TTL / 2));
    OK(redlock_inspect(labelled, "shown", 5, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_HELD && strstr(text, " (web-2:4711), left") != NULL);
    OK(redlock_inspect_json(labelled, "shown", 5, json, sizeof json, &needed));
    CHECK(strstr(json, "\"has_left\":true") != NULL);
    OK(redlock_break_lock(labelled, "shown", 5, text, &broken));
    CHECK(broken == 1);
    /* The holder leaves between the look and the break. */
    OK(redlock_try_acquire(labelled, "shown", 5, TTL, &lock));
    OK(redlock_inspect(labelled, "shown", 5, held, sizeof held, &left, &state));
    CHECK(strstr(held, "left") == NULL);
    OK(redlock_lock_leak_for(lock, TTL / 2));
    OK(redlock_break_lock(labelled, "shown", 5, held, &broken));
    CHECK(broken == 1);
    OK(redlock_set_label(labelled, NULL));
    OK(redlock_try_acquire(labelled, "shown", 5, TTL, &lock));
    OK(redlock_inspect(labelled, "shown", 5, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_HELD && text[0] != 0 && strchr(text, '(') == NULL);
    /* Another client waits, and has a label. */
    CHECK(document_has(labelled, "\"waiting\":0,\"waiting_labels\":[],"));
    OK(redlock_set_label(other, label));
    CHECK(pthread_create(&waiter, NULL, wait_for_it, other) == 0);
    EVENTUALLY(document_has(labelled, "\"waiting\":1,\"waiting_labels\":[\"web-2:4711\"],"));
    OK(redlock_lock_release(lock));
    CHECK(pthread_join(waiter, NULL) == 0);
    redlock_free(other);
    /* Its key is beside the other, and both have the name "shown". */
    IS(REDLOCK_CONFIG, redlock_set_prefix(NULL, "team:"));
    IS(REDLOCK_CONFIG, redlock_set_prefix(labelled, "two words"));
    CHECK(last_error_has("without spaces"));
    IS(REDLOCK_CONFIG, redlock_set_prefix(labelled, "\xff"));
    OK(redlock_set_prefix(labelled, "team:"));
    OK(redlock_try_acquire(labelled, "shown", 5, TTL, &lock));
    OK(redlock_set_prefix(labelled, NULL));
    OK(redlock_inspect(labelled, "shown", 5, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_FREE);
    OK(redlock_inspect(labelled, "team:shown", 10, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_HELD);
    OK(redlock_lock_release(lock));
    IS(REDLOCK_CONFIG, redlock_inspect(labelled, "", 0, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_UNKNOWN && text[0] == 0);
    IS(REDLOCK_CONFIG, redlock_inspect(NULL, "a", 1, text, sizeof text, &left, &state));
    IS(REDLOCK_CONFIG, redlock_inspect(labelled, NULL, 1, text, sizeof text, &left, &state));
    IS(REDLOCK_CONFIG, redlock_inspect(labelled, "a", 1, text, sizeof text, NULL, &state));
    IS(REDLOCK_CONFIG, redlock_inspect(labelled, "a", 1, text, sizeof text, &left, NULL));
    CHECK(REDLOCK_STATE_BLOCKED == 2);

    OK(redlock_try_acquire(labelled, "shown", 5, TTL, &lock));
    OK(redlock_inspect(labelled, "shown", 5, text, 4, &left, &state));
    IS(REDLOCK_CONFIG, redlock_break_lock(labelled, "shown", 5, text, &fit));
    CHECK(fit == 0 && strlen(text) == 3);
    IS(REDLOCK_CONFIG, redlock_break_lock(labelled, "shown", 5, "", &fit));
    IS(REDLOCK_CONFIG, redlock_break_lock(labelled, "shown", 5, "web-2:4711", &fit));
    CHECK(fit == 0 && last_error_has("names no holder"));
    OK(redlock_lock_extend(lock, TTL));
    OK(redlock_inspect(labelled, "shown", 5, text, sizeof text, &left, &state));
    OK(redlock_break_lock(labelled, "shown", 5, text, &fit));
    CHECK(fit == 1);
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    /* The next holder stays. */
    OK(redlock_try_acquire(labelled, "shown", 5, TTL, &lock));
    OK(redlock_break_lock(labelled, "shown", 5, text, &fit));
    CHECK(fit == 0);
    OK(redlock_lock_release(lock));
    IS(REDLOCK_CONFIG, redlock_break_lock(NULL, "a", 1, text, &fit));
    IS(REDLOCK_CONFIG, redlock_break_lock(labelled, "", 0, text, &fit));
    IS(REDLOCK_CONFIG, redlock_break_lock(labelled, "a", 1, NULL, &fit));
    IS(REDLOCK_CONFIG, redlock_break_lock(labelled, "a", 1, text, NULL));

    OK(redlock_check(labelled, "probe", 5, text, sizeof text, &fit));
    CHECK(fit == 1);
    OK(redlock_check(labelled, "probe", 5, NULL, 0, &fit));
    IS(REDLOCK_CONFIG, redlock_check(labelled, "", 0, text, sizeof text, &fit));
    CHECK(fit == 0);
    IS(REDLOCK_CONFIG, redlock_check(NULL, "probe", 5, text, sizeof text, &fit));
    IS(REDLOCK_CONFIG, redlock_check(labelled, "probe", 5, text, sizeof text, NULL));
    redlock_free(labelled);

    labelled = client(nowhere, 1);
    OK(redlock_check(labelled, "probe", 5, text, sizeof text, &fit));
    CHECK(fit == 0 && strstr(text, "fault: ") != NULL);
    OK(redlock_check(labelled, "probe", 5, text, 4, &fit));
    CHECK(strlen(text) == 3);
    OK(redlock_check(labelled, "probe", 5, NULL, 0, &fit));
    IS(REDLOCK_CONFIG, redlock_check(labelled, "", 0, NULL, 0, &fit));
    OK(redlock_inspect(labelled, "shown", 5, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_UNKNOWN && left == 0);
    IS(REDLOCK_UNAVAILABLE, redlock_break_lock(labelled, "shown", 5, "1a2b3c4d", &fit));
    redlock_free(labelled);
}

static void kept_alive(const char *const *urls)
{
    counter_t calls = COUNTER;
    loss_t loss, late;
    warning_t warning;
    redlock_t *redlock = client(urls, 3);
    redlock_lock_t *lock, *other;

    /* Small against the ttl, so that a renewal that failed is tried again. */
    OK(redlock_set(redlock, REDLOCK_OPTION_NODE_TIMEOUT_MS, 500));

    /* Longer than its ttl. */
    lock = take(redlock, "k", SHORT);
    OK(redlock_lock_keep_alive(lock, TTL));
    CHECK(redlock_lock_hold_left_ms(lock) > TTL / 2);
    CHECK(redlock_lock_is_valid(lock) && redlock_lock_remaining_ms(lock) <= SHORT);
    OK(redlock_lock_ensure(lock, 1));
    IS(REDLOCK_TOO_SLOW, redlock_lock_ensure(lock, TTL));
    CHECK(redlock_lock_extensions_left(lock) == 0);
    IS(REDLOCK_CONFIG, redlock_lock_extend(lock, TTL));
    IS(REDLOCK_CONFIG, redlock_lock_keep_alive(lock, TTL));
    OK(redlock_lock_wait_lost(lock, 0));
    OK(redlock_lock_wait_lost(lock, SHORT + SHORT / 2));
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_NONE);
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "k", 1, TTL, &other));
    OK(redlock_lock_release(lock));

    /* A warning before the loss: at once, and one that is forgotten. */
    lock = take_kept(redlock, "k", TTL, TTL);
    memset(&warning, 0, sizeof warning);
    warning.lock = lock;
    OK(redlock_lock_on_expiring(lock, 0, on_expiring, &warning));
    OK(redlock_lock_on_expiring(lock, 2 * TTL, on_expiring, &warning));
    EVENTUALLY(add(&warning.calls, 0) == 1);
    CHECK(warning.left > TTL / 2 && warning.left <= TTL && warning.status == REDLOCK_CONFIG);
    CHECK(redlock_lock_since_renewal_ms(lock) < TTL / 2);
    OK(redlock_lock_ensure(lock, 0));
    OK(redlock_lock_stop(lock));
    IS(REDLOCK_CONFIG, redlock_lock_on_expiring(lock, 0, on_expiring, &warning));
    CHECK(redlock_lock_since_renewal_ms(lock) == 0);
    OK(redlock_lock_release(lock));
    CHECK(add(&warning.calls, 0) == 1);

    /* A plain lock again, and kept again. A callback is forgotten. */
    lock = take_kept(redlock, "k", SHORT, TTL);
    OK(redlock_lock_on_lost(lock, count_loss, &calls));
    OK(redlock_lock_stop(lock));
    CHECK(redlock_lock_hold_left_ms(lock) == 0);
    IS(REDLOCK_CONFIG, redlock_lock_stop(lock));
    OK(redlock_lock_extend(lock, SHORT));
    CHECK(redlock_lock_extensions_left(lock) == 9);
    OK(redlock_lock_keep_alive(lock, TTL));
    OK(redlock_lock_stop(lock));
    EVENTUALLY(!redlock_lock_is_valid(lock));
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    CHECK(add(&calls, 0) == 0);

    /* Leaked: its ttl ends it. */
    lock = take_kept(redlock, "k", SHORT, TTL);
    redlock_lock_leak(lock);
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "k", 1, TTL, &other));

    /* Taken away; two callbacks, and one that comes late. Releasing waits for those that run. */
    lock = take_kept(redlock, "k", SHORT, TTL);
    loss_init(&loss, redlock, lock);
    loss_init(&late, redlock, lock);
    OK(redlock_lock_on_lost(lock, on_lost, &loss));
    OK(redlock_lock_on_lost(lock, count_loss, &calls));
    other = twin(redlock, lock);
    OK(redlock_lock_release(other));
    IS(REDLOCK_LOST, redlock_lock_wait_lost(lock, TWENTY_SECONDS));
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_DELETED);
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_DELETED);
    CHECK(!redlock_lock_is_valid(lock) && redlock_lock_remaining_ms(lock) == 0);
    IS(REDLOCK_LOST, redlock_lock_ensure(lock, 0));
    EVENTUALLY(add(&loss.begun, 0) == 1);
    OK(redlock_lock_on_lost(lock, on_lost, &late));
    EVENTUALLY(add(&late.begun, 0) == 1);
    EVENTUALLY(add(&calls, 0) == 1);
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    CHECK(add(&loss.done, 0) == 1 && add(&late.done, 0) == 1);
    CHECK(loss.reason == REDLOCK_REASON_DELETED && late.reason == REDLOCK_REASON_DELETED);
    CHECK(!pthread_equal(loss.thread, pthread_self()));

    /* Another holder has it by now. (Servers that run no scripts report neither.) */
    lock = take(redlock, "k", TTL);
    OK(redlock_lock_release(twin(redlock, lock)));
    other = take(redlock, "k", TTL);
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_TAKEN);
    CHECK(REDLOCK_REASON_TAKEN != REDLOCK_REASON_NOT_HELD);
    OK(redlock_lock_release(other));

    /* The bound on the hold. Stopping waits, too. */
    lock = take_kept(redlock, "k", SHORT, SHORT + SHORT / 4);
    loss_init(&loss, redlock, lock);
    OK(redlock_lock_on_lost(lock, on_lost, &loss));
    IS(REDLOCK_LOST, redlock_lock_wait_lost(lock, UINT64_MAX));
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_HOLD_LIMIT);
    CHECK(redlock_lock_hold_left_ms(lock) == 0);
    EVENTUALLY(add(&loss.begun, 0) == 1);
    OK(redlock_lock_stop(lock));
    CHECK(add(&loss.done, 0) == 1 && loss.reason == REDLOCK_REASON_HOLD_LIMIT);
    IS(REDLOCK_LOST, redlock_lock_release(lock));

    /* Failing to keep it alive has released it; the handle stays until it is ended. */
    lock = take(redlock, "k", TTL);
    IS(REDLOCK_CONFIG, redlock_lock_keep_alive(lock, 0));
    CHECK(last_error_has("max_hold"));
    CHECK(redlock_lock_is_valid(lock) == 0 && redlock_lock_remaining_ms(lock) == 0);
    IS(REDLOCK_LOST, redlock_lock_ensure(lock, 0));
    IS(REDLOCK_LOST, redlock_lock_extend(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_keep_alive(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_stop(lock));
    IS(REDLOCK_LOST, redlock_lock_wait_lost(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_on_lost(lock, count_loss, &calls));
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_RELEASED);
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_RELEASED);
    CHECK(redlock_lock_extensions_left(lock) == 0 && redlock_lock_hold_left_ms(lock) == 0);
    CHECK(redlock_lock_token(lock, NULL, 0) == 20 && redlock_lock_resource(lock, NULL, 0) == 1);
    other = take(redlock, "k", TTL);
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    OK(redlock_lock_release(other));

    /* It was lost before: that reason was found first. */
    lock = take(redlock, "k", SHORT);
    EVENTUALLY(!redlock_lock_is_valid(lock));
    IS(REDLOCK_LOST, redlock_lock_keep_alive(lock, TTL));
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_EXPIRED);
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_EXPIRED);
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_EXPIRED);
    redlock_free(redlock);
}

/* A lock does not need the client that it came from. */
static void a_lock_outlives_its_client(const char *const *urls)
{
    redlock_t *redlock = client(urls, 3);
    redlock_lock_t *lock = take_kept(redlock, "alone", SHORT, TTL);

    redlock_free(redlock);
    OK(redlock_lock_wait_lost(lock, 100));
    OK(redlock_lock_release(lock));
}

typedef struct {
    redlock_t *redlock;
    redlock_lock_t *lock;
    int rounds;
    int *shared;
    counter_t *running, *stop;
} work_t;

static void *contend(void *argument)
{
    work_t *work = (work_t *)argument;
    redlock_lock_t *lock;
    int i;

    CHECK(redlock_last_error(NULL, 0) == 0);
    add(work->running, 1);
    for (i = 0; i < work->rounds; i++) {
        lock = take(work->redlock, "counter", TTL);
        ++*work->shared;
        OK(redlock_lock_release(lock));
    }
    return NULL;
}

static void child(redlock_t *redlock, redlock_lock_t *lock, redlock_lock_t *kept,
                  counter_t *calls)
{
    redlock_lock_t *mine;

    CHECK(redlock_lock_is_valid(lock) == 0 && redlock_lock_is_valid(kept) == 0);
    CHECK(redlock_lock_remaining_ms(kept) == 0 && redlock_lock_hold_left_ms(kept) == 0);
    CHECK(redlock_lock_token(kept, NULL, 0) == 20 && redlock_lock_resource(kept, NULL, 0) == 4);
    IS(REDLOCK_LOST, redlock_lock_ensure(lock, 0));
    CHECK(redlock_last_lost_reason() == REDLOCK_REASON_OTHER_PROCESS);
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_OTHER_PROCESS);
    IS(REDLOCK_LOST, redlock_lock_extend(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_keep_alive(lock, TTL));
    IS(REDLOCK_LOST, redlock_lock_wait_lost(kept, TTL));
    IS(REDLOCK_LOST, redlock_lock_on_lost(kept, count_loss, calls));
    IS(REDLOCK_LOST, redlock_lock_stop(kept));
    IS(REDLOCK_CONFIG, redlock_set(redlock, REDLOCK_OPTION_WAIT_MS, 1));
    CHECK(last_error_has("fork"));

#ifndef __SANITIZE_ADDRESS__
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "mine", 4, TTL, &mine));
#endif
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    redlock_lock_leak(kept);
    /* That sanitizer's allocator does not survive a fork while other threads use it: one of them may have held its
       lock, and threads that are started here would wait for it for ever. */
#ifndef __SANITIZE_ADDRESS__
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "mine", 4, TTL, &mine));
    mine = take_kept(redlock, "child", TTL / 2, TTL);
    OK(redlock_lock_wait_lost(mine, 100));
    OK(redlock_lock_release(mine));
#else
    (void)mine;
#endif
    redlock_free(redlock);
}

static void eight_threads_and_a_fork_in_the_middle(redlock_t *redlock, int rounds)
{
    counter_t running = COUNTER, calls = COUNTER;
    redlock_lock_t *lock = take(redlock, "mine", TTL);
    redlock_lock_t *kept = take_kept(redlock, "kept", TTL / 2, 10 * TTL);
    pthread_t threads[8];
    work_t work;
    int shared = 0, i, status;
    pid_t pid;

    OK(redlock_lock_on_lost(kept, count_loss, &calls));
    memset(&work, 0, sizeof work);
    work.redlock = redlock;
    work.rounds = rounds;
    work.shared = &shared;
    work.running = &running;
    for (i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, contend, &work) == 0);
    EVENTUALLY(add(&running, 0) == 8);
    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        child(redlock, lock, kept, &calls);
        /* Not _exit(): valgrind would look for leaks here, and find what the threads held that do not
           exist in this process. */
        execl("/bin/sh", "sh", "-c", "exit 17", (char *)NULL);
        _exit(1);
    }
    for (i = 0; i < 8; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(shared == 8 * rounds);
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 17);
    CHECK(redlock_lock_is_valid(kept));
    OK(redlock_lock_release(kept));
    OK(redlock_lock_release(lock));
    CHECK(add(&calls, 0) == 0);
}

static void ignore(const redlock_event_t *event, void *user)
{
    (void)event;
    (void)user;
}

static void *change_settings(void *argument)
{
    work_t *work = (work_t *)argument;

    add(work->running, 1);
    while (add(work->stop, 0) == 0) {
        OK(redlock_set_label(work->redlock, "forks"));
        OK(redlock_set_prefix(work->redlock, "forks:"));
        OK(redlock_set(work->redlock, REDLOCK_OPTION_WAIT_MS, TWENTY_SECONDS));
        OK(redlock_set_observer(work->redlock, ignore, NULL));
        OK(redlock_set_observer(work->redlock, NULL, NULL));
    }
    return NULL;
}

/* A child has the settings of some moment, and not the thread that was changing them. */
static void forks_while_settings_change(const char *const *urls)
{
    counter_t running = COUNTER, stop = COUNTER;
    redlock_t *redlock = client(urls, 3);
    redlock_lock_t *lock;
    pthread_t changes;
    work_t work;
    int status, i;
    pid_t pid;

    memset(&work, 0, sizeof work);
    work.redlock = redlock;
    work.running = &running;
    work.stop = &stop;
    CHECK(pthread_create(&changes, NULL, change_settings, &work) == 0);
    EVENTUALLY(add(&running, 0) == 1);
    fflush(NULL);
    for (i = 0; i < 200; i++) {
        pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(60);
            /* With AddressSanitizer the child touches nothing of the client, so it tries nothing there. */
#ifndef __SANITIZE_ADDRESS__
            IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, "", 0, TTL, &lock));
            if (i == 0)
                OK(redlock_lock_release(take(redlock, "of a child", TTL)));
#endif
            execl("/bin/sh", "sh", "-c", "exit 17", (char *)NULL);
            _exit(1);
        }
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 17);
    }
    add(&stop, 1);
    CHECK(pthread_join(changes, NULL) == 0);
    redlock_free(redlock);
    (void)lock;
}

static void *ask(void *argument)
{
    work_t *work = (work_t *)argument;
    redlock_lock_t *lock = work->lock;
    int status;

    add(work->running, 1);
    while (add(work->stop, 0) == 0) {
        OK(redlock_lock_ensure(lock, 1));
        CHECK(redlock_lock_is_valid(lock) && redlock_lock_remaining_ms(lock) > 0);
        CHECK(redlock_lock_extensions_left(lock) <= 10);
        CHECK(redlock_lock_hold_left_ms(lock) <= 2 * TTL);
        CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_NONE);
        status = redlock_lock_wait_lost(lock, 10);
        CHECK(status == REDLOCK_OK || status == REDLOCK_CONFIG);
        /* Where threads run one at a time, the one that changes the lock must get its turn. */
        pause_ms(1);
    }
    return NULL;
}

static void one_lock_in_eight_threads(redlock_t *redlock)
{
    counter_t running = COUNTER, stop = COUNTER, calls = COUNTER;
    redlock_lock_t *lock = take(redlock, "shared", TTL);
    pthread_t threads[8];
    work_t work;
    int i;

    memset(&work, 0, sizeof work);
    work.lock = lock;
    work.running = &running;
    work.stop = &stop;
    for (i = 0; i < 8; i++)
        CHECK(pthread_create(&threads[i], NULL, ask, &work) == 0);
    EVENTUALLY(add(&running, 0) == 8);
    for (i = 0; i < 5; i++) {
        OK(redlock_lock_extend(lock, TTL));
        OK(redlock_lock_keep_alive(lock, 2 * TTL));
        OK(redlock_lock_on_lost(lock, count_loss, &calls));
        OK(redlock_lock_stop(lock));
    }
    add(&stop, 1);
    for (i = 0; i < 8; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(redlock_lock_release(lock));
    CHECK(add(&calls, 0) == 0);
}

/* Frozen, a kept lock expires; killed, connections close under the program's feet, and with the
   default disposition a SIGPIPE would end it. */
static void servers_that_die(const char *url, pid_t pid)
{
    const char *urls[1];
    redlock_t *redlock;
    redlock_lock_t *lock, *kept, *other;
    loss_t loss;
    struct sigaction action;
    int i;

    urls[0] = url;
    redlock = client(urls, 1);
    OK(redlock_set(redlock, REDLOCK_OPTION_NODE_TIMEOUT_MS, 500));
    OK(redlock_set(redlock, REDLOCK_OPTION_WAIT_MS, 0));
    lock = take_kept(redlock, "frozen", SHORT, TTL);
    loss_init(&loss, NULL, NULL);
    OK(redlock_lock_on_lost(lock, count_loss, &loss.begun));
    CHECK(kill(pid, SIGSTOP) == 0);
    IS(REDLOCK_LOST, redlock_lock_wait_lost(lock, TWENTY_SECONDS));
    CHECK(redlock_lock_lost_reason(lock) == REDLOCK_REASON_EXPIRED);
    EVENTUALLY(add(&loss.begun, 0) == 1);
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    IS(REDLOCK_UNAVAILABLE, redlock_try_acquire(redlock, "frozen", 6, TTL, &lock));
    CHECK(lock == NULL && last_error_has("the node did not answer: "));
    CHECK(kill(pid, SIGCONT) == 0);
    EVENTUALLY(redlock_try_acquire(redlock, "dying", 5, TTL, &lock) == REDLOCK_OK);
    EVENTUALLY(redlock_try_acquire(redlock, "kept", 4, TTL, &kept) == REDLOCK_OK);
    OK(redlock_lock_keep_alive(kept, TTL));
    EVENTUALLY(redlock_try_acquire(redlock, "other", 5, TTL, &other) == REDLOCK_OK);

    CHECK(kill(pid, SIGKILL) == 0);
    for (i = 0; i < 3; i++) {
        redlock_lock_t *none;
        IS(REDLOCK_UNAVAILABLE, redlock_lock_extend(lock, TTL));
        CHECK(last_error_has("the node did not answer: "));
        IS(REDLOCK_UNAVAILABLE, redlock_try_acquire(redlock, "new", 3, TTL, &none));
        CHECK(none == NULL);
    }
    CHECK(redlock_lock_is_valid(lock));
    IS(REDLOCK_UNAVAILABLE, redlock_lock_release(lock));
    IS(REDLOCK_UNAVAILABLE, redlock_lock_release(kept));
    redlock_lock_leak(other);
    redlock_free(redlock);
    CHECK(sigaction(SIGPIPE, NULL, &action) == 0);
    CHECK(action.sa_handler == SIG_DFL);
}

static void *has_no_error(void *argument)
{
    (void)argument;
    CHECK(redlock_last_error(NULL, 0) == 0);
    IS(REDLOCK_CONFIG, redlock_set(NULL, 0, 0));
    CHECK(last_error_has("redlock is NULL"));
    return NULL;
}

static void errors_name_the_nodes_and_belong_to_the_thread(void)
{
    /* Ports where nothing listens. */
    static const char *const urls[] = {"redis://user:hunter2@127.0.0.1:1",
                                       "redis://:hunter2@127.0.0.1:2"};
    redlock_t *redlock = client(urls, 2);
    redlock_lock_t *lock;
    pthread_t thread;

    IS(REDLOCK_UNAVAILABLE, redlock_try_acquire(redlock, "a", 1, TTL, &lock));
    CHECK(last_error_has("node 0 (") && last_error_has("127.0.0.1:1"));
    CHECK(!last_error_has("hunter2"));
    IS(REDLOCK_UNAVAILABLE, redlock_connect(redlock));
    CHECK(last_error_has("0 of 2 answered; node 0 (127.0.0.1:1): "));
    CHECK(pthread_create(&thread, NULL, has_no_error, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(last_error_has("node 0 ("));
    redlock_free(redlock);
}

/* Memory of its own: that of files comes and goes as the machine is busy. */
static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long size, resident, shared;

    CHECK(file != NULL && fscanf(file, "%ld %ld %ld", &size, &resident, &shared) == 3);
    fclose(file);
    return (resident - shared) * (sysconf(_SC_PAGESIZE) / 1024);
}

/* With one node, so that none is behind the others: what such a node is owed is bounded, but is more
   than what is looked for here. */
static void pairs_do_not_grow(const char *const *urls, long pairs, long growth_kib)
{
    redlock_t *redlock = client(urls, 1);
    redlock_lock_t *lock;
    long i, before = 0, growth;

    for (i = -pairs / 10; i < pairs; i++) {
        if (i == 0)
            before = resident_kib();
        OK(redlock_try_acquire(redlock, "pair", 4, TTL, &lock));
        OK(redlock_lock_release(lock));
    }
    growth = resident_kib() - before;
    printf("%ld pairs: %ld KiB\n", pairs, growth);
    if (growth_kib > 0 && growth > growth_kib)
        fail(__LINE__, "memory grows", (int)growth);
    redlock_free(redlock);
}

/* The servers have not been up for a minute. */
static void restarted_nodes_do_not_vote(const char *const *urls)
{
    redlock_t *redlock = client(urls, 3);
    redlock_lock_t *lock;
    char cause[500];

    OK(redlock_set(redlock, REDLOCK_OPTION_RESTART_GUARD_MS, 3600000));
    IS(REDLOCK_UNAVAILABLE, redlock_try_acquire(redlock, "guarded", 7, TTL, &lock));
    CHECK(last_error_has("may have forgotten locks"));
    CHECK(redlock_last_cause(0, cause, sizeof cause) > 0);
    CHECK(strstr(cause, "may have forgotten locks") != NULL);
    CHECK(redlock_last_cause(1, cause, 0) > 0 && redlock_last_cause(64, cause, sizeof cause) == 0 && cause[0] == 0);
    CHECK(redlock_last_retry_after_ms() > 60000);
    CHECK(redlock_last_retry_after_ms() <= 3602000);
    IS(REDLOCK_CONFIG, redlock_try_acquire(redlock, "guarded", 7, 3600001, &lock));
    CHECK(last_error_has("the restart guard is for 3600s at most"));
    CHECK(redlock_last_retry_after_ms() == 0);
    CHECK(redlock_last_is_permanent() == 0);
    redlock_free(redlock);
}

/* What passes is told from what an operator has to change, which is not waited for. */
static void a_wrong_password_is_not_waited_for(const char *const *urls)
{
    char url[256];
    const char *one = url, *host = strstr(urls[0], "://") + 3;
    redlock_t *redlock;
    redlock_lock_t *lock;

    snprintf(url, sizeof(url), "%.*s:wrong@%s", (int)(host - urls[0]), urls[0], host);
    OK(redlock_new(&one, 1, &redlock));
    OK(redlock_set(redlock, REDLOCK_OPTION_WAIT_MS, UINT64_MAX));
    IS(REDLOCK_UNAVAILABLE, redlock_acquire(redlock, "a", 1, TTL, &lock));
    CHECK(redlock_last_is_permanent() == 1);
    CHECK(!last_error_has("wrong@"));
    IS(REDLOCK_CONFIG, redlock_acquire(redlock, "a", 1, 0, &lock));
    CHECK(redlock_last_is_permanent() == 0);
    redlock_free(redlock);
}

/* What was logged, and what fn shall do meanwhile. */
typedef struct {
    counter_t at[REDLOCK_LOG_TRACE + 1];
    counter_t in, waits;
    redlock_t *redlock;
    redlock_lock_t *lock;
    const char *expected;
    int found, ends;
} log_t;

static log_t *new_log(void)
{
    log_t *log = (log_t *)calloc(1, sizeof *log);
    int i;

    CHECK(log != NULL);
    for (i = 0; i <= REDLOCK_LOG_TRACE; i++)
        pthread_mutex_init(&log->at[i].mutex, NULL);
    pthread_mutex_init(&log->in.mutex, NULL);
    pthread_mutex_init(&log->waits.mutex, NULL);
    return log;
}

static int logged(log_t *log)
{
    int i, sum = 0;

    for (i = REDLOCK_LOG_ERROR; i <= REDLOCK_LOG_TRACE; i++)
        sum += add(&log->at[i], 0);
    return sum;
}

static void on_log(int level, const char *message, void *user)
{
    log_t *log = (log_t *)user;
    redlock_lock_t *other;

    CHECK(level >= REDLOCK_LOG_ERROR && level <= REDLOCK_LOG_TRACE);
    CHECK(strlen(message) > 3 && strchr(message, '\n') == NULL);
    add(&log->at[level], 1);
    add(&log->in, 1);
    if (log->expected != NULL && strstr(message, log->expected) != NULL)
        log->found = 1;
    while (add(&log->waits, 0) > 0)
        pause_ms(1);
    if (log->redlock != NULL) {
        other = take(log->redlock, "taken while logging", TTL);
        OK(redlock_lock_extend(other, TTL));
        OK(redlock_lock_release(other));
    }
    if (log->lock != NULL) {
        CHECK(redlock_lock_is_valid(log->lock) && redlock_lock_remaining_ms(log->lock) > 0);
        OK(redlock_lock_extend(log->lock, TTL));
        OK(redlock_lock_keep_alive(log->lock, 2 * TTL));
        OK(redlock_lock_stop(log->lock));
    }
    if (log->ends)
        OK(redlock_set_log(0, NULL, NULL));
    add(&log->in, -1);
}

static void *log_something(void *argument)
{
    log_t *log = (log_t *)argument;

    OK(redlock_lock_release(take(log->redlock, "logs", TTL)));
    return NULL;
}

static void *set_no_log(void *argument)
{
    OK(redlock_set_log(0, NULL, NULL));
    add((counter_t *)argument, 1);
    return NULL;
}

/* Nobody leaves fn before it may, and redlock_set_log() waits for that; but not in a child, where nobody is. */
static void a_thread_in_the_log_callback(redlock_t *redlock)
{
    counter_t returned = COUNTER;
    log_t *log = new_log(), *other = new_log(), work;
    pthread_t logs, sets;
    int status;
    pid_t pid;

    memset(&work, 0, sizeof work);
    work.redlock = redlock;
    add(&log->waits, 1);
    OK(redlock_set_log(REDLOCK_LOG_DEBUG, on_log, log));
    CHECK(pthread_create(&logs, NULL, log_something, &work) == 0);
    EVENTUALLY(add(&log->in, 0) > 0);
    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(60);
        OK(redlock_set_log(REDLOCK_LOG_DEBUG, on_log, other));
#ifndef __SANITIZE_ADDRESS__
        OK(redlock_lock_release(take(redlock, "logs in a child", TTL)));
        CHECK(logged(other) > 0);
        OK(redlock_set_log(0, NULL, NULL));
#endif
        execl("/bin/sh", "sh", "-c", "exit 17", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 17);

    CHECK(pthread_create(&sets, NULL, set_no_log, &returned) == 0);
    pause_ms(100);
    CHECK(add(&returned, 0) == 0);
    add(&log->waits, -1);
    EVENTUALLY(add(&returned, 0) == 1);
    CHECK(add(&log->in, 0) == 0);
    free(log);
    CHECK(pthread_join(logs, NULL) == 0 && pthread_join(sets, NULL) == 0);
    free(other);
}

/* Whoever is called finds what belongs to it, and not what was freed. */
static void the_log_callback_changes_all_the_time(redlock_t *redlock)
{
    counter_t running = COUNTER;
    pthread_t threads[4];
    log_t *log, *old = NULL;
    work_t work;
    int shared = 0, seen = 0, i;

    memset(&work, 0, sizeof work);
    work.redlock = redlock;
    work.rounds = 100;
    work.shared = &shared;
    work.running = &running;
    for (i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, contend, &work) == 0);
    for (i = 0; i < 1000 || seen < 10; i++) {
        log = i % 3 == 2 ? NULL : new_log();
        OK(redlock_set_log(REDLOCK_LOG_TRACE, log == NULL ? NULL : on_log, log));
        if (old != NULL) {
            CHECK(add(&old->in, 0) == 0);
            seen += logged(old);
            memset(old, 0xff, sizeof *old);
            free(old);
        }
        old = log;
        if (i >= 1000)
            OK(redlock_lock_release(take(redlock, "of this thread", TTL)));
    }
    OK(redlock_set_log(0, NULL, NULL));
    free(old);
    for (i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(shared == 4 * work.rounds);
}

static void log_messages(const char *const *urls)
{
    redlock_t *redlock = client(urls, 3);
    log_t *log = new_log();
    redlock_lock_t *lock, *other;
    int count;

    OK(redlock_set(redlock, REDLOCK_OPTION_MAX_EXTENSIONS, UINT32_MAX));
    lock = take(redlock, "log", TTL);
    IS(REDLOCK_CONFIG, redlock_set_log(0, on_log, log));
    IS(REDLOCK_CONFIG, redlock_set_log(-1, on_log, log));
    IS(REDLOCK_CONFIG, redlock_set_log(6, on_log, log));
    CHECK(last_error_has("max_level is 6: it must be 1 to 5"));
    OK(redlock_set_log(-1, NULL, NULL));
    OK(redlock_lock_extend(lock, TTL));
    CHECK(logged(log) == 0);

    /* What goes well is worth no warning. */
    OK(redlock_set_log(REDLOCK_LOG_INFO, on_log, log));
    OK(redlock_lock_extend(lock, TTL));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "log", 3, TTL, &other));
    CHECK(logged(log) == 0);
    OK(redlock_set_log(REDLOCK_LOG_DEBUG, on_log, log));
    log->expected = "acquire \"log\": denied (";
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "log", 3, TTL, &other));
    CHECK(log->found && add(&log->at[REDLOCK_LOG_DEBUG], 0) == 1 && logged(log) == 1);
    OK(redlock_set_log(REDLOCK_LOG_TRACE, on_log, log));
    OK(redlock_lock_extend(lock, TTL));
    CHECK(add(&log->at[REDLOCK_LOG_TRACE], 0) >= 2);
    count = logged(log);
    OK(redlock_set_log(REDLOCK_LOG_TRACE, NULL, log));
    OK(redlock_lock_extend(lock, TTL));
    CHECK(logged(log) == count);

    /* fn may use everything, and is not told what it does. */
    log->redlock = redlock;
    log->lock = lock;
    OK(redlock_set_log(REDLOCK_LOG_TRACE, on_log, log));
    OK(redlock_lock_extend(lock, TTL));
    CHECK(logged(log) >= count + 2 && logged(log) <= count + 3);
    OK(redlock_lock_release(take(redlock, "another", TTL)));
    count = logged(log);
    log->ends = 1;
    OK(redlock_lock_extend(lock, TTL));
    CHECK(logged(log) == count + 1);
    OK(redlock_lock_extend(lock, TTL));
    CHECK(logged(log) == count + 1);
    log->redlock = NULL;
    log->lock = NULL;
    log->ends = 0;

    OK(redlock_set_log(REDLOCK_LOG_WARN, on_log, log));
    CHECK(add(&log->at[REDLOCK_LOG_WARN], 0) == 0);
    OK(redlock_lock_release(twin(redlock, lock)));
    log->expected = "lock \"log\" was found lost";
    log->found = 0;
    IS(REDLOCK_LOST, redlock_lock_extend(lock, TTL));
    CHECK(log->found && add(&log->at[REDLOCK_LOG_WARN], 0) == 1);
    IS(REDLOCK_LOST, redlock_lock_release(lock));
    OK(redlock_set_log(0, NULL, NULL));
    CHECK(add(&log->at[REDLOCK_LOG_ERROR], 0) == 0);
    free(log);

    a_thread_in_the_log_callback(redlock);
    the_log_callback_changes_all_the_time(redlock);
    redlock_free(redlock);
}

/* Each call with a handle of another thread does nothing. */
static void *has_no_right(void *user)
{
    redlock_lock_t *lock = (redlock_lock_t *)user;
    uint64_t fence = 1;

    CHECK(redlock_lock_depth(lock) == 0 && last_error_has("belongs to the thread"));
    CHECK(redlock_lock_remaining_ms(lock) == 0 && redlock_lock_is_valid(lock) == 0);
    CHECK(redlock_lock_extensions_left(lock) == 0);
    IS(REDLOCK_CONFIG, redlock_lock_ensure(lock, 1));
    IS(REDLOCK_CONFIG, redlock_lock_extend(lock, TTL));
    IS(REDLOCK_CONFIG, redlock_lock_fencing_token(lock, &fence));
    IS(REDLOCK_CONFIG, redlock_lock_release(lock));
    CHECK(fence == 0);
    return NULL;
}

static void reentrant(redlock_t *redlock)
{
    uint8_t token[REDLOCK_TOKEN_SIZE];
    redlock_lock_t *outer, *inner, *other;
    pthread_t thread;
    uint64_t fence = 0, again = 0;
    uint32_t left;
    char resource[1], text[200];
    int state;

    OK(redlock_acquire_reentrant(redlock, "r", 1, TTL, TWENTY_SECONDS, &outer));
    CHECK(redlock_lock_depth(outer) == 1 && redlock_lock_is_valid(outer));
    OK(redlock_acquire_reentrant(redlock, "r", 1, TTL, 0, &inner));
    CHECK(redlock_lock_depth(outer) == 2 && redlock_lock_depth(inner) == 2);
    CHECK(redlock_lock_resource(inner, resource, 1) == 1 && resource[0] == 'r');
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "r", 1, TTL, &other));

    left = redlock_lock_extensions_left(outer);
    OK(redlock_acquire_reentrant(redlock, "r", 1, 10 * TTL, 0, &other));
    CHECK(redlock_lock_extensions_left(inner) == left - 1);
    CHECK(redlock_lock_remaining_ms(outer) > 5 * TTL);
    OK(redlock_lock_ensure(other, 5 * TTL));
    OK(redlock_lock_extend(other, TTL));
    OK(redlock_lock_fencing_token(outer, &fence));
    OK(redlock_lock_fencing_token(inner, &again));
    CHECK(fence == again && fence > 0);
    OK(redlock_lock_release(other));

    IS(REDLOCK_CONFIG, redlock_lock_keep_alive(inner, TTL));
    IS(REDLOCK_CONFIG, redlock_lock_stop(inner));
    CHECK(redlock_lock_token(inner, token, sizeof token) == 0 && last_error_has("reentrant"));
    IS(REDLOCK_CONFIG, redlock_lock_leak(inner));
    CHECK(last_error_has("reentrant"));
    IS(REDLOCK_CONFIG, redlock_lock_leak_for(inner, TTL));
    CHECK(pthread_create(&thread, NULL, has_no_right, inner) == 0);
    CHECK(pthread_join(thread, NULL) == 0);

    CHECK(redlock_lock_depth(outer) == 2);
    OK(redlock_lock_release(outer));
    CHECK(redlock_lock_depth(inner) == 1 && redlock_lock_is_valid(inner));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "r", 1, TTL, &other));
    OK(redlock_lock_release(inner));
    OK(redlock_try_acquire(redlock, "r", 1, TTL, &other));
    CHECK(redlock_lock_depth(other) == 1);
    OK(redlock_lock_release(other));

    /* All handles have the reason of the loss. */
    OK(redlock_acquire_reentrant(redlock, "r", 1, TTL, TWENTY_SECONDS, &outer));
    OK(redlock_acquire_reentrant(redlock, "r", 1, TTL, 0, &inner));
    CHECK(redlock_lock_lost_reason(outer) == REDLOCK_REASON_NONE);
    OK(redlock_inspect(redlock, "r", 1, text, sizeof text, &again, &state));
    OK(redlock_break_lock(redlock, "r", 1, text, &state));
    CHECK(state == 1);
    IS(REDLOCK_LOST, redlock_lock_extend(inner, TTL));
    CHECK(redlock_lock_lost_reason(inner) == REDLOCK_REASON_DELETED);
    CHECK(redlock_lock_lost_reason(outer) == REDLOCK_REASON_DELETED);
    IS(REDLOCK_LOST, redlock_lock_release(inner));
    IS(REDLOCK_LOST, redlock_lock_release(outer));
}

/* Its giver ends it, and it goes on under another handle. */
static uint64_t hand_over(redlock_lock_t *lock, uint8_t token[REDLOCK_TOKEN_SIZE])
{
    uint64_t left = redlock_lock_remaining_ms(lock);

    CHECK(redlock_lock_token(lock, token, REDLOCK_TOKEN_SIZE) == REDLOCK_TOKEN_SIZE);
    redlock_lock_leak(lock);
    return left;
}

static void other_kinds_are_handed_over(redlock_t *redlock)
{
    const void *const names[] = {"b", "a"};
    const size_t lens[] = {1, 1};
    uint8_t token[REDLOCK_TOKEN_SIZE];
    redlock_lock_t *lock, *other;
    uint64_t left;
    int64_t slot;

    OK(redlock_acquire_permit(redlock, "pool", 4, 2, TTL, TWENTY_SECONDS, &lock));
    slot = redlock_lock_slot(lock);
    left = hand_over(lock, token);
    OK(redlock_resume_permit(redlock, "pool", 4, 2, token, left, &lock));
    CHECK(redlock_lock_slot(lock) == -1);
    OK(redlock_lock_extend(lock, TTL));
    CHECK(redlock_lock_slot(lock) == slot);
    OK(redlock_lock_release(lock));

    OK(redlock_acquire_read(redlock, "rw", 2, TTL, TWENTY_SECONDS, &lock));
    left = hand_over(lock, token);
    OK(redlock_resume_read(redlock, "rw", 2, token, left, &lock));
    OK(redlock_lock_extend(lock, TTL));
    OK(redlock_lock_release(lock));
    OK(redlock_acquire_write(redlock, "rw", 2, TTL, TWENTY_SECONDS, &lock));
    left = hand_over(lock, token);
    OK(redlock_resume_write(redlock, "rw", 2, token, left, &lock));
    OK(redlock_lock_extend(lock, TTL));
    IS(REDLOCK_BUSY, redlock_acquire_read(redlock, "rw", 2, TTL, 0, &other));
    OK(redlock_lock_release(lock));

    OK(redlock_acquire_several(redlock, names, lens, 2, TTL, TWENTY_SECONDS, &lock));
    left = hand_over(lock, token);
    OK(redlock_resume_several(redlock, names, lens, 2, token, left, &lock));
    OK(redlock_lock_extend(lock, TTL));
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "b", 1, TTL, &other));
    OK(redlock_lock_release(lock));
    OK(redlock_acquire_several(redlock, names, lens, 2, TTL, TWENTY_SECONDS, &lock));
    OK(redlock_lock_release(lock));
}

static void other_kinds(redlock_t *redlock)
{
    const void *const names[] = {"b", "a", "b"};
    const size_t lens[] = {1, 1, 1};
    redlock_lock_t *first, *second, *other;
    char text[400], *line;
    uint64_t left = 0;
    int state = -1, broken = -1;
    int64_t slot;

    OK(redlock_acquire_permit(redlock, "pool", 4, 2, TTL, TWENTY_SECONDS, &first));
    OK(redlock_acquire_permit(redlock, "pool", 4, 2, TTL, 0, &second));
    CHECK(redlock_lock_slot(first) + redlock_lock_slot(second) == 1);
    IS(REDLOCK_BUSY, redlock_acquire_permit(redlock, "pool", 4, 2, TTL, 0, &other));
    CHECK(other == NULL);
    OK(redlock_inspect(redlock, "pool", 4, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_PERMITS && left > 0 && left <= TTL);
    line = strchr(text, '\n');
    CHECK(line != NULL && strstr(text, " in slot 0\n") != NULL && strstr(line, " in slot 1") != NULL);
    slot = redlock_lock_slot(first);
    OK(redlock_lock_extend(first, TTL));
    OK(redlock_lock_keep_alive(first, TTL));
    CHECK(redlock_lock_slot(first) == slot);
    OK(redlock_lock_release(first));
    OK(redlock_acquire_permit(redlock, "pool", 4, 2, TTL, TWENTY_SECONDS, &first));
    CHECK(redlock_lock_slot(first) == slot);
    OK(redlock_lock_release(second));
    OK(redlock_inspect(redlock, "pool", 4, text, sizeof text, &left, &state));
    OK(redlock_break_lock(redlock, "pool", 4, text, &broken));
    CHECK(broken == 1);
    IS(REDLOCK_LOST, redlock_lock_release(first));

    OK(redlock_acquire_read(redlock, "rw", 2, TTL, TWENTY_SECONDS, &first));
    OK(redlock_acquire_read(redlock, "rw", 2, TTL, 0, &second));
    CHECK(redlock_lock_slot(first) == -1);
    IS(REDLOCK_BUSY, redlock_acquire_write(redlock, "rw", 2, TTL, 0, &other));
    OK(redlock_inspect(redlock, "rw", 2, text, sizeof text, &left, &state));
    CHECK(state == REDLOCK_STATE_READERS && strstr(text, " reading\n") != NULL);
    IS(REDLOCK_CONFIG, redlock_break_lock(redlock, "rw", 2, text, &broken));
    CHECK(broken == 0 && last_error_has("names 2 holders: give one line of it"));
    OK(redlock_lock_extend(first, TTL));
    OK(redlock_lock_extend(second, TTL));
    IS(REDLOCK_OTHER_KIND, redlock_acquire_permit(redlock, "rw", 2, 2, TTL, TWENTY_SECONDS, &other));
    CHECK(last_error_has("is in use as a read-write lock"));
    OK(redlock_lock_release(first));
    OK(redlock_lock_release(second));
    OK(redlock_acquire_write(redlock, "rw", 2, TTL, TWENTY_SECONDS, &first));
    IS(REDLOCK_BUSY, redlock_acquire_read(redlock, "rw", 2, TTL, 0, &other));
    OK(redlock_lock_release(first));

    OK(redlock_acquire_several(redlock, names, lens, 3, TTL, TWENTY_SECONDS, &first));
    CHECK(redlock_lock_resource(first, text, sizeof text) == 1 && text[0] == 'a');
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "b", 1, TTL, &other));
    IS(REDLOCK_BUSY, redlock_acquire_several(redlock, names, lens, 1, TTL, 0, &other));
    OK(redlock_lock_ensure(first, 1));
    OK(redlock_lock_release(first));
    OK(redlock_try_acquire(redlock, "b", 1, TTL, &other));
    OK(redlock_lock_release(other));
}

/* All calls that wait in this thread, of all kinds, and with their own bound. */
static void waits_of_a_thread_ask(redlock_t *redlock)
{
    static const void *const names[] = {"asks", "asks:2"};
    static const size_t lens[] = {4, 6};
    redlock_lock_t *lock = take(redlock, "asks", TTL), *other = NULL;
    char holder[80];
    int left;

#define ASKED(call)                                                                                \
    do {                                                                                           \
        left = 3;                                                                                  \
        IS(REDLOCK_CANCELLED, call);                                                               \
        CHECK(other == NULL && left == -1);                                                        \
    } while (0)
    redlock_set_keep_trying(count_down, &left);
    ASKED(redlock_acquire(redlock, "asks", 4, TTL, &other));
    ASKED(redlock_acquire_within(redlock, "asks", 4, TTL, UINT64_MAX, &other));
    ASKED(redlock_acquire_reentrant(redlock, "asks", 4, TTL, UINT64_MAX, &other));
    ASKED(redlock_acquire_several(redlock, names, lens, 2, TTL, UINT64_MAX, &other));
    ASKED(redlock_acquire_write(redlock, "asks", 4, TTL, UINT64_MAX, &other));
    ASKED(redlock_acquire_read(redlock, "asks", 4, TTL, UINT64_MAX, &other));
    /* A single attempt asks only while it connects, and the wait is as long as it was. */
    left = 0;
    IS(REDLOCK_BUSY, redlock_try_acquire(redlock, "asks", 4, TTL, &other));
    IS(REDLOCK_BUSY, redlock_acquire_within(redlock, "asks", 4, TTL, 0, &other));
    CHECK(left == 0);
    redlock_set_keep_trying(always, NULL);
    IS(REDLOCK_BUSY, redlock_acquire_within(redlock, "asks", 4, TTL, 200, &other));
    CHECK(redlock_last_label(holder, sizeof holder) == 0 && holder[0] == 0);
    CHECK(redlock_last_remaining_ms() > TTL / 2 && redlock_last_remaining_ms() <= TTL);
    CHECK(redlock_last_is_own() == 1);
    OK(redlock_lock_release(lock));
    OK(redlock_acquire_permit(redlock, "asks", 4, 1, TTL, TWENTY_SECONDS, &lock));
    IS(REDLOCK_BUSY, redlock_acquire_permit(redlock, "asks", 4, 1, TTL, 0, &other));
    CHECK(redlock_last_is_own() == 0); /* only plain locks are looked for */
    redlock_set_keep_trying(count_down, &left);
    ASKED(redlock_acquire_permit(redlock, "asks", 4, 1, TTL, UINT64_MAX, &other));
#undef ASKED
    redlock_set_keep_trying(NULL, NULL);
    OK(redlock_lock_release(lock));
    OK(redlock_acquire(redlock, "asks", 4, TTL, &lock));
    OK(redlock_lock_release(lock));
}

typedef struct {
    pid_t child;
    int left;
} forking_t;

static int fork_once(void *user)
{
    forking_t *forking = (forking_t *)user;

    if (forking->child < 0) {
        fflush(NULL);
        forking->child = fork();
        if (forking->child == 0)
            alarm(20);
    }
    return forking->left-- > 0;
}

/* Questions to what takes connections and answers nothing. */
static void questions_of_a_thread_ask(void)
{
    int mute = socket(AF_INET, SOCK_STREAM, 0), left, yes, status;
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    char url[64], answer[1000];
    const char *urls[1];
    forking_t forking = {-1, 20};
    uint64_t ended, took, again, left_ms;
    size_t needed;
    redlock_t *redlock;

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(mute, (struct sockaddr *)&address, sizeof address) == 0 && listen(mute, 100) == 0);
    CHECK(getsockname(mute, (struct sockaddr *)&address, &length) == 0);
    sprintf(url, "redis://127.0.0.1:%d", (int)ntohs(address.sin_port));
    urls[0] = url;
    redlock = client(urls, 1);
    OK(redlock_set(redlock, REDLOCK_OPTION_CONNECT_TIMEOUT_MS, 60000));

#define ASKED(call)                                                                                \
    do {                                                                                           \
        left = 3;                                                                                  \
        IS(REDLOCK_CANCELLED, call);                                                               \
        CHECK(left == -1 && last_error_has("given up"));                                           \
    } while (0)
    redlock_set_keep_trying(count_down, &left);
    ASKED(redlock_connect(redlock));
    ASKED(redlock_check(redlock, "asks", 4, answer, sizeof answer, &yes));
    ASKED(redlock_check_json(redlock, "asks", 4, answer, sizeof answer, &needed));
    ASKED(redlock_inspect(redlock, "asks", 4, answer, sizeof answer, &left_ms, &yes));
    ASKED(redlock_inspect_json(redlock, "asks", 4, answer, sizeof answer, &needed));
    ASKED(redlock_inspect_last_run(redlock, "asks", 4, answer, sizeof answer, &ended, &took, &again));
    ASKED(redlock_break_lock(redlock, "asks", 4, "1a2b3c4d", &yes));
#undef ASKED

#ifndef __SANITIZE_ADDRESS__
    /* The thread that asks is the parent's. */
    redlock_set_keep_trying(fork_once, &forking);
    status = redlock_inspect(redlock, "asks", 4, answer, sizeof answer, &left_ms, &yes);
    if (forking.child == 0) {
        CHECK(status == REDLOCK_CANCELLED && forking.left == 19);
        execl("/bin/sh", "sh", "-c", "exit 17", (char *)NULL);
        _exit(1);
    }
    CHECK(status == REDLOCK_CANCELLED && forking.left == -1);
    CHECK(waitpid(forking.child, &status, 0) == forking.child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 17);
#else
    (void)forking, (void)fork_once, (void)status;
#endif
    redlock_set_keep_trying(NULL, NULL);
    /* What was begun ends with the connections. */
    close(mute);
    redlock_free(redlock);
}

static int holds(const char *url, const char *resource)
{
    redlock_t *redlock = client(&url, 1);
    redlock_lock_t *lock;
    uint64_t fencing_token;
    char answer[1000];
    int fit;

    /* It would wait for servers that were just started. */
    OK(redlock_set(redlock, REDLOCK_OPTION_RESTART_GUARD_MS, 0));
    OK(redlock_connect(redlock));
    OK(redlock_check(redlock, resource, strlen(resource), answer, sizeof answer, &fit));
    lock = take(redlock, resource, TTL);
    OK(redlock_lock_extend(lock, TTL));
    OK(redlock_lock_fencing_token(lock, &fencing_token));
    puts("held");
    fflush(stdout);
    CHECK(getchar() == '\n');
    /* While its servers change too few may answer. */
    EVENTUALLY(redlock_lock_extend(lock, TTL) == REDLOCK_OK);
    CHECK(redlock_lock_is_valid(lock));
    OK(redlock_lock_release(lock));
    redlock_free(redlock);
    puts("ok");
    return 0;
}

int main(int argc, char **argv)
{
    const char *urls[3];
    redlock_t *redlock;
    int files, i;

    /* A program that hangs fails. */
    alarm(900);
#ifdef LEAK
    /* To see that who looks for leaks finds them. */
    urls[0] = "redis://127.0.0.1";
    OK(redlock_new(urls, 1, &redlock));
    redlock = NULL;
    return 0;
#endif
    if (argc == 3)
        return holds(argv[1], argv[2]);
    if (argc != 10)
        return 2;
    for (i = 0; i < 3; i++)
        urls[i] = argv[1 + i];
    CHECK(redlock_last_error(NULL, 0) == 0);
    files = entries("/proc/self/fd");
    version_and_codes();
    redlock = client(urls, 3);
    null_is_never_a_crash(redlock, urls);
    OK(redlock_connect(redlock));
    wrong_values(redlock, urls);
    options_work(urls);
    restarted_nodes_do_not_vote(urls);
    a_wrong_password_is_not_waited_for(urls);
    acquire_ask_extend_release(redlock);
    labels_and_what_is_shown(urls);
    events_are_told(urls);
    kept_alive(urls);
    reentrant(redlock);
    other_kinds(redlock);
    other_kinds_are_handed_over(redlock);
    waits_of_a_thread_ask(redlock);
    questions_of_a_thread_ask();
    log_messages(urls);
    a_lock_outlives_its_client(urls);
    errors_name_the_nodes_and_belong_to_the_thread();
    one_lock_in_eight_threads(redlock);
    eight_threads_and_a_fork_in_the_middle(redlock, 100);
    forks_while_settings_change(urls);
    pairs_do_not_grow(urls, atol(argv[8]), atol(argv[9]));
    servers_that_die(argv[4], (pid_t)atol(argv[5]));
    servers_that_die(argv[6], (pid_t)atol(argv[7]));
    redlock_free(redlock);

    /* Nothing is left but this thread (and two names in every directory). */
    EVENTUALLY(entries("/proc/self/task") == 3);
    EVENTUALLY(entries("/proc/self/fd") == files);
    puts("ok");
    return 0;
}
