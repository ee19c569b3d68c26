/* Preloaded into a contender or a server: shifts its wall clock by the nanoseconds in the file CLOCK_OFFSET, and no other clock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        offset = map;
}

static void shift(struct timespec *time)
{
    int64_t ns = offset ? *offset : 0;
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
