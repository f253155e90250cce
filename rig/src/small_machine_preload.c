/* Preloaded into a program that is to believe in a smaller machine: sysinfo answers $KEDGE_SMALL_MACHINE bytes of memory. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

int sysinfo(struct sysinfo *info)
{
	const char *bytes = getenv("KEDGE_SMALL_MACHINE");
	int result = (int)syscall(SYS_sysinfo, info);

	if (!result && bytes) {
		info->totalram = strtoul(bytes, NULL, 10);
		info->mem_unit = 1;
	}
	return result;
}
