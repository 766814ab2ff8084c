/* Writes down what a program does to the files below one directory, and what of it is synced; and
 * has it fail.
 *
 * For LD_PRELOAD. DISK_DIR is the directory, DISK_LOG the file that is written to. Each record is
 * its kind, the length of the path, the offset and the length of the data, then path and data:
 * C created, W written, T truncated, B a sync begins, S it has ended, R renamed (data is the new
 * path), U unlinked. A directory's path ends in a slash. A record of a change comes before the change,
 * those of a sync around it. With DISK_LIES, no sync ever ends. DISK_FAULT is a file of two integers
 * that may change at any time: an error, and what has it: 1 writes, 2 syncs, 4 names, 8 reads, or their
 * sum.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 4096

struct __attribute__((packed)) head {
    char kind;
    uint16_t path;
    uint64_t offset;
    uint32_t data;
};

static char *paths[FILES];
static const char *top;
static int output = -1;
static const volatile int32_t *fault;
enum { WRITES = 1, SYNCS = 2, NAMES = 4, READS = 8 };

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
    top = getenv("DISK_DIR");
    const char *file = getenv("DISK_LOG");
    if (top && file)
        output = (int)syscall(SYS_openat, AT_FDCWD, file,
                              O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const char *faults = getenv("DISK_FAULT");
    int opened = faults ? (int)syscall(SYS_openat, AT_FDCWD, faults, O_RDONLY | O_CLOEXEC) : -1;
    if (opened < 0) return;
    void *mapped = mmap(NULL, 2 * sizeof *fault, PROT_READ, MAP_SHARED, opened, 0);
    if (mapped != MAP_FAILED) fault = mapped;
    syscall(SYS_close, opened);
}

static int fails(int what) {
    if (!fault || !fault[0] || !(fault[1] & what)) return 0;
    errno = fault[0];
    return 1;
}

static void note(char kind, const char *path, uint64_t offset, const void *data, size_t length) {
    struct head head = {kind, (uint16_t)strlen(path), offset, (uint32_t)length};
    struct iovec parts[3] = {
        {&head, sizeof head}, {(void *)path, head.path}, {(void *)data, length}};
    int before = errno;
    if (output >= 0 && writev(output, parts, 3) < 0) abort();
    errno = before;
}

static int ours(const char *path) {
    return top && path && strncmp(path, top, strlen(top)) == 0;
}

static const char *path_of(int fd) { return fd >= 0 && fd < FILES ? paths[fd] : NULL; }

static int opened(int fd, const char *path, int flags, int existed) {
    if (fd >= 0 && fd < FILES && ours(path)) {
        struct stat about;
        int is_directory = fstat(fd, &about) == 0 && S_ISDIR(about.st_mode);
        if (is_directory) {
            paths[fd] = malloc(strlen(path) + 2);
            strcat(strcpy(paths[fd], path), "/");
            return fd;
        }
        paths[fd] = strdup(path);
        if (!existed) note('C', path, 0, "", 0);
        if (existed && (flags & O_TRUNC)) note('T', path, 0, "", 0);
    }
    return fd;
}

#define MODE(flags, last) \
    mode_t mode = 0; \
    if ((flags) & O_CREAT) { va_list rest; va_start(rest, last); mode = va_arg(rest, mode_t); va_end(rest); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        MODE(flags, flags) \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && ours(path) && fails(NAMES)) return -1; \
        int existed = access(path, F_OK) == 0, before = errno; \
        errno = before; \
        return opened(real(path, flags, mode), path, flags, existed); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int place, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        MODE(flags, flags) \
        if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && ours(path) && fails(NAMES)) return -1; \
        int existed = access(path, F_OK) == 0; \
        return opened(real(place, path, flags, mode), path, flags, existed); \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    REAL(int, "close", int);
    if (fd >= 0 && fd < FILES) paths[fd] = NULL;
    return real(fd);
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    const char *path = path_of(fd);
    if (path && fails(WRITES)) return -1;
    if (path) note('W', path, (uint64_t)lseek(fd, 0, SEEK_CUR), data, length);
    return real(fd, data, length);
}

#define PWRITE(name, kind) \
    ssize_t name(int fd, const void *data, size_t length, kind offset) { \
        REAL(ssize_t, #name, int, const void *, size_t, kind); \
        const char *path = path_of(fd); \
        if (path && fails(WRITES)) return -1; \
        if (path) note('W', path, (uint64_t)offset, data, length); \
        return real(fd, data, length, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t read(int fd, void *data, size_t length) {
    REAL(ssize_t, "read", int, void *, size_t);
    return path_of(fd) && fails(READS) ? -1 : real(fd, data, length);
}

#define PREAD(name, kind) \
    ssize_t name(int fd, void *data, size_t length, kind offset) { \
        REAL(ssize_t, #name, int, void *, size_t, kind); \
        return path_of(fd) && fails(READS) ? -1 : real(fd, data, length, offset); \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define TRUNCATE(name, kind) \
    int name(int fd, kind length) { \
        REAL(int, #name, int, kind); \
        const char *path = path_of(fd); \
        if (path && fails(WRITES)) return -1; \
        if (path) note('T', path, (uint64_t)length, "", 0); \
        return real(fd, length); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define SYNC(name) \
    int name(int fd) { \
        REAL(int, #name, int); \
        static uint64_t numbers; \
        const char *path = path_of(fd); \
        uint64_t number = __atomic_add_fetch(&numbers, 1, __ATOMIC_SEQ_CST); \
        if (path) note('B', path, number, #name, strlen(#name)); \
        int result = path && fails(SYNCS) ? -1 : real(fd); \
        if (path && result == 0 && !getenv("DISK_LIES")) note('S', path, number, #name, strlen(#name)); \
        return result; \
    }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    if (ours(from) && fails(NAMES)) return -1;
    if (ours(from)) note('R', from, 0, to, strlen(to));
    return real(from, to);
}

int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    if (ours(path) && fails(NAMES)) return -1;
    if (ours(path)) note('U', path, 0, "", 0);
    return real(path);
}
