/*
 * What the images of the story `platforms` run: a line a second with its argument, the platform that it was compiled for, and the
 * machine that it runs on. It ends by SIGTERM, which the first process of a container must ask for.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

#if defined(__x86_64__)
#define PLATFORM "linux/amd64"
#elif defined(__aarch64__)
#define PLATFORM "linux/arm64"
#elif defined(__arm__) && __ARM_ARCH == 7
#define PLATFORM "linux/arm/v7"
#else
#error "an image for this processor is not part of the story"
#endif

static void end(int signal)
{
	_exit(signal == SIGTERM ? 0 : 1);
}

int main(int count, char **arguments)
{
	struct utsname machine;

	signal(SIGTERM, end);
	if (count != 2 || uname(&machine) != 0)
		return 1;
	for (;;) {
		printf("%s for %s on %s\n", arguments[1], PLATFORM, machine.machine);
		fflush(stdout);
		sleep(1);
	}
}
