/* Preloaded into a server: with 1 in the file DISK_FAULT no regular file can be written, since the disk is full; with 2
   nothing that was written can be made to stay. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const volatile char *fault;

__attribute__((constructor)) static void map_fault(void)
{
    const char *path = getenv("DISK_FAULT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *map = mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        fault = map;
}

static int is_full(int file)
{
    struct stat status;
    if (!fault || *fault != 1 || fstat(file, &status) != 0 || !S_ISREG(status.st_mode))
        return 0;
    errno = ENOSPC;
    return 1;
}

static int fails(void)
{
    if (!fault || *fault != 2)
        return 0;
    errno = EIO;
    return 1;
}

ssize_t write(int file, const void *bytes, size_t size)
{
    return is_full(file) ? -1 : syscall(SYS_write, file, bytes, size);
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    return is_full(file) ? -1 : syscall(SYS_writev, file, parts, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t at)
{
    return is_full(file) ? -1 : syscall(SYS_pwrite64, file, bytes, size, at);
}

int fsync(int file)
{
    return fails() ? -1 : (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    return fails() ? -1 : (int)syscall(SYS_fdatasync, file);
}

int sync_file_range(int file, off64_t at, off64_t size, unsigned flags)
{
    return fails() ? -1 : (int)syscall(SYS_sync_file_range, file, at, size, flags);
}
