/* Preloaded into a contender or a server: shifts its wall clock, and no other clock, by what is in the file CLOCK_OFFSET. That has
 * one to four numbers: nanoseconds; a rate, in parts of a million, at which the clock gains besides; since when, by the monotonic
 * clock; and the most nanoseconds that it gains so (0: no limit). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OFFSET, RATE, SINCE, MOST };
static const volatile int64_t *numbers;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    /* A page, which is zero behind the file's end. */
    void *map = mmap(NULL, 4 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        numbers = map;
}

static int64_t gained(void)
{
    struct timespec now;
    int64_t rate = numbers[RATE], most = numbers[MOST];
    if (rate == 0 || syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now) != 0)
        return 0;
    int64_t microseconds = (now.tv_sec * 1000000000LL + now.tv_nsec - numbers[SINCE]) / 1000;
    int64_t gain = microseconds * rate / 1000;
    return most != 0 && gain > most ? most : gain;
}

static void shift(struct timespec *time)
{
    int64_t ns = numbers ? numbers[OFFSET] + gained() : 0;
    int64_t sum = time->tv_nsec + ns % 1000000000;
    time->tv_sec += ns / 1000000000;
    if (sum < 0) {
        sum += 1000000000;
        time->tv_sec -= 1;
    } else if (sum >= 1000000000) {
        sum -= 1000000000;
        time->tv_sec += 1;
    }
    time->tv_nsec = sum;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(time);
    return result;
}

int gettimeofday(struct timeval *restrict value, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    value->tv_sec = now.tv_sec;
    value->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
