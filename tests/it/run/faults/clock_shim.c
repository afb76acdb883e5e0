/* Clock faults, preloaded into a program: only the times that it reads are wrong.
 * The faults are in the file $CLOCK_FAULTS, which a test changes while the program runs. Raw system calls
 * only: this is called before any library is initialised. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

struct faults {
    /* Added to the wall clock, in nanoseconds. */
    volatile int64_t wall;
    /* How much too fast the clocks that cannot be set run, in millionths, from these moments on. */
    volatile int64_t rate, boot, monotonic;
};

static struct faults *faults;
static char timers[1024];
static int set_fd = -1;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CLOCK_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(0, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) faults = map;
    close(fd);
}

static int64_t ns(const struct timespec *t) { return t->tv_sec * 1000000000LL + t->tv_nsec; }

static void put(struct timespec *t, int64_t n) {
    t->tv_sec = n / 1000000000LL;
    t->tv_nsec = n % 1000000000LL;
}

static int64_t origin(clockid_t id) { return id == CLOCK_BOOTTIME ? faults->boot : faults->monotonic; }

int clock_gettime(clockid_t id, struct timespec *t) {
    if (syscall(SYS_clock_gettime, id, t)) return -1;
    if (!faults) return 0;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) {
        put(t, ns(t) + faults->wall);
    } else if (faults->rate && (id == CLOCK_BOOTTIME || id == CLOCK_MONOTONIC)) {
        int64_t since = ns(t) - origin(id);
        put(t, ns(t) + since / 1000000 * faults->rate);
    }
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

/* A timer on the wall clock is the pipe $CLOCK_WAS_SET: a write to it means that the clock was set. */
int timerfd_create(int id, int flags) {
    const char *pipe = getenv("CLOCK_WAS_SET");
    if (id == CLOCK_REALTIME && pipe)
        return set_fd = open(pipe, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    int fd = syscall(SYS_timerfd_create, id, flags);
    if (fd >= 0 && fd < (int)sizeof timers) timers[fd] = id == CLOCK_BOOTTIME;
    return fd;
}

int timerfd_settime(int fd, int flags, const struct itimerspec *new, struct itimerspec *old) {
    struct itimerspec shifted = *new;
    if (fd == set_fd && fd >= 0) return 0;
    if (faults && faults->rate && flags & TFD_TIMER_ABSTIME && fd < (int)sizeof timers && timers[fd] && ns(&new->it_value)) {
        int64_t since = ns(&new->it_value) - faults->boot;
        put(&shifted.it_value, faults->boot + (int64_t)((double)since * 1e6 / (1e6 + faults->rate)));
    }
    return syscall(SYS_timerfd_settime, fd, flags, &shifted, old);
}

ssize_t read(int fd, void *buffer, size_t count) {
    ssize_t got = syscall(SYS_read, fd, buffer, count);
    if (got > 0 && fd == set_fd) {
        errno = ECANCELED;
        return -1;
    }
    return got;
}
