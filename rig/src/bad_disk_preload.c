/* Preloaded into a program whose disk is to misbehave. Files below $KEDGE_BAD_DISK_BELOW behave as the struct in the file
 * $KEDGE_BAD_DISK says, which the test changes while the program runs. All other files reach the kernel untouched.
 *
 * A full disk is one whose files may not grow beyond the room that is left: what is overwritten in place needs none, what is
 * truncated or removed gives it back, and a write that does not fit is cut short first, as by a real file system. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in bad_disk.rs. */
struct control {
	int64_t room;        /* bytes that files may still grow by; negative: no limit */
	int64_t read_only;   /* every change fails with EROFS */
	int64_t fail_writes; /* every write fails with EIO */
	int64_t fail_syncs;  /* so many syncs fail with EIO; negative: all */
	int64_t hang_syncs;  /* syncs do not return as long as this is set */
	int64_t hanging;     /* syncs that hang now */
	int64_t refused;     /* calls that failed because of us */
	int64_t fail_reads;  /* of so many reads one fails with EIO; 0: none */
	int64_t reads;       /* reads since then */
};

static struct control *control;
static const char *below;

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("KEDGE_BAD_DISK");
	int descriptor;
	void *at;

	below = getenv("KEDGE_BAD_DISK_BELOW");
	if (!path || !below)
		return;
	descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
	at = descriptor < 0 ? MAP_FAILED
			    : mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (at == MAP_FAILED) {
		fprintf(stderr, "cannot map %s: %s\n", path, strerror(errno));
		abort();
	}
	control = at;
	close(descriptor);
}

static int64_t get(int64_t *field)
{
	return __atomic_load_n(field, __ATOMIC_SEQ_CST);
}

static int is_below(const char *path)
{
	return control && path && !strncmp(path, below, strlen(below));
}

static int is_ours(int descriptor)
{
	char link[64], path[PATH_MAX];
	ssize_t length;
	int kept = errno;

	if (!control)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
	length = readlink(link, path, sizeof(path) - 1);
	errno = kept;
	if (length < 0)
		return 0;
	path[length] = 0;
	return is_below(path);
}

static int refuse(int error)
{
	__atomic_add_fetch(&control->refused, 1, __ATOMIC_SEQ_CST);
	errno = error;
	return -1;
}

/* Takes room for growth from one size to another; returns how much of it there was. */
static int64_t take(int64_t wanted)
{
	int64_t room = get(&control->room), taken;

	do {
		if (room < 0 || wanted <= 0)
			return wanted;
		taken = wanted < room ? wanted : room;
	} while (!__atomic_compare_exchange_n(&control->room, &room, room - taken, 0, __ATOMIC_SEQ_CST,
					      __ATOMIC_SEQ_CST));
	return taken;
}

static void give_back(int64_t bytes)
{
	int64_t room = get(&control->room);

	do {
		if (room < 0 || bytes <= 0)
			return;
	} while (!__atomic_compare_exchange_n(&control->room, &room, room + bytes, 0, __ATOMIC_SEQ_CST,
					      __ATOMIC_SEQ_CST));
}

static int64_t size_of(int descriptor)
{
	struct stat what;

	return fstat(descriptor, &what) || !S_ISREG(what.st_mode) ? -1 : what.st_size;
}

static void give_back_file(const char *path)
{
	struct stat what;

	if (!stat(path, &what) && S_ISREG(what.st_mode) && what.st_nlink == 1)
		give_back(what.st_size);
}

/* Whether this read fails. */
static int is_bad_read(int descriptor)
{
	int64_t of;

	if (!control || !(of = get(&control->fail_reads)) || size_of(descriptor) < 0 || !is_ours(descriptor))
		return 0;
	return __atomic_add_fetch(&control->reads, 1, __ATOMIC_SEQ_CST) % of == 0;
}

ssize_t read(int descriptor, void *buffer, size_t count)
{
	if (is_bad_read(descriptor))
		return refuse(EIO);
	return syscall(SYS_read, descriptor, buffer, count);
}

ssize_t pread64(int descriptor, void *buffer, size_t count, off64_t offset)
{
	if (is_bad_read(descriptor))
		return refuse(EIO);
	return syscall(SYS_pread64, descriptor, buffer, count, offset);
}

ssize_t pread(int descriptor, void *buffer, size_t count, off_t offset)
{
	return pread64(descriptor, buffer, count, offset);
}

/* How many of `count` bytes at `offset` may be written, or -1. */
static ssize_t allowed(int descriptor, size_t count, int64_t offset)
{
	int64_t size, growth, taken;

	if (get(&control->read_only))
		return refuse(EROFS);
	if (get(&control->fail_writes))
		return refuse(EIO);
	size = size_of(descriptor);
	if (size < 0)
		return (ssize_t)count;
	if (fcntl(descriptor, F_GETFL) & O_APPEND)
		offset = size;
	growth = offset + (int64_t)count - size;
	if (growth <= 0)
		return (ssize_t)count;
	taken = take(growth);
	if (taken < growth && (int64_t)count - (growth - taken) <= 0) {
		give_back(taken);
		return refuse(ENOSPC);
	}
	return (ssize_t)((int64_t)count - (growth - taken));
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
	ssize_t may = (ssize_t)count;

	if (count && is_ours(descriptor)) {
		may = allowed(descriptor, count, lseek(descriptor, 0, SEEK_CUR));
		if (may < 0)
			return -1;
	}
	return syscall(SYS_write, descriptor, bytes, may);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off64_t offset)
{
	ssize_t may = (ssize_t)count;

	if (count && is_ours(descriptor)) {
		may = allowed(descriptor, count, offset);
		if (may < 0)
			return -1;
	}
	return syscall(SYS_pwrite64, descriptor, bytes, may, offset);
}

ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t offset)
{
	return pwrite64(descriptor, bytes, count, offset);
}

int ftruncate64(int descriptor, off64_t length)
{
	if (is_ours(descriptor)) {
		if (get(&control->read_only))
			return refuse(EROFS);
		give_back(size_of(descriptor) - length);
	}
	return (int)syscall(SYS_ftruncate, descriptor, length);
}

int ftruncate(int descriptor, off_t length)
{
	return ftruncate64(descriptor, length);
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t length)
{
	if (is_ours(descriptor)) {
		int64_t growth = offset + length - size_of(descriptor), taken;

		if (get(&control->read_only))
			return refuse(EROFS);
		taken = growth > 0 ? take(growth) : growth;
		if (taken < growth) {
			give_back(taken);
			return refuse(ENOSPC);
		}
	}
	return (int)syscall(SYS_fallocate, descriptor, mode, offset, length);
}

int fallocate(int descriptor, int mode, off_t offset, off_t length)
{
	return fallocate64(descriptor, mode, offset, length);
}

static int synced(int descriptor, long call)
{
	int64_t left;

	if (!is_ours(descriptor))
		return (int)syscall(call, descriptor);
	__atomic_add_fetch(&control->hanging, 1, __ATOMIC_SEQ_CST);
	while (get(&control->hang_syncs))
		usleep(2000);
	__atomic_sub_fetch(&control->hanging, 1, __ATOMIC_SEQ_CST);
	left = get(&control->fail_syncs);
	if (left) {
		if (left > 0)
			__atomic_sub_fetch(&control->fail_syncs, 1, __ATOMIC_SEQ_CST);
		return refuse(EIO);
	}
	return (int)syscall(call, descriptor);
}

int fsync(int descriptor)
{
	return synced(descriptor, SYS_fsync);
}

int fdatasync(int descriptor)
{
	return synced(descriptor, SYS_fdatasync);
}

static int opened(int directory, const char *path, int flags, mode_t mode)
{
	if (is_below(path)) {
		int writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_TRUNC | O_CREAT);

		/* an existing file may be opened for reading with O_CREAT */
		if (writes && get(&control->read_only) &&
		    ((flags & O_ACCMODE) != O_RDONLY || access(path, F_OK)))
			return refuse(EROFS);
		if (flags & O_TRUNC)
			give_back_file(path);
	}
	return (int)syscall(SYS_openat, directory, path, flags, mode);
}

#define MODE(flags, last)                                                                                              \
	({                                                                                                             \
		mode_t mode_ = 0;                                                                                      \
		if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                               \
			va_list rest_;                                                                                 \
			va_start(rest_, last);                                                                         \
			mode_ = va_arg(rest_, mode_t);                                                                 \
			va_end(rest_);                                                                                 \
		}                                                                                                      \
		mode_;                                                                                                 \
	})

int open(const char *path, int flags, ...)
{
	return opened(AT_FDCWD, path, flags, MODE(flags, flags));
}

int open64(const char *path, int flags, ...)
{
	return opened(AT_FDCWD, path, flags | O_LARGEFILE, MODE(flags, flags));
}

int openat(int directory, const char *path, int flags, ...)
{
	return opened(directory, path, flags, MODE(flags, flags));
}

int openat64(int directory, const char *path, int flags, ...)
{
	return opened(directory, path, flags | O_LARGEFILE, MODE(flags, flags));
}

int unlink(const char *path)
{
	if (is_below(path)) {
		if (get(&control->read_only))
			return refuse(EROFS);
		give_back_file(path);
	}
	return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rename(const char *from, const char *to)
{
	if (is_below(to)) {
		if (get(&control->read_only))
			return refuse(EROFS);
		give_back_file(to);
	}
	return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdir(const char *path, mode_t mode)
{
	if (is_below(path) && get(&control->read_only) && access(path, F_OK))
		return refuse(EROFS);
	return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int fchmod(int descriptor, mode_t mode)
{
	if (is_ours(descriptor) && get(&control->read_only))
		return refuse(EROFS);
	return (int)syscall(SYS_fchmod, descriptor, mode);
}
