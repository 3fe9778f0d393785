// A worker that does what its first argument says. behave.wasm is made of it with clang 14.0.6 and wasi-libc:
//
//	clang --target=wasm32-wasi -Os -s -o behave.wasm behave.c
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__attribute__((import_module("miwnode"), import_name("draining"))) int miw_draining(void);
__attribute__((import_module("miwnode"), import_name("wait"))) int miw_wait(int ms);

static void put(int fd, const char *s) { write(fd, s, strlen(s)); }

static void say(const char *what, const char *s) {
	put(1, what);
	put(1, s ? s : "none");
	put(1, "\n");
}

static int does(const char *arg, const char *name) { return strcmp(arg, name) == 0; }

// Takes a mebibyte, which the compiler must not take for useless.
static char *volatile taken;

static char *take(void) { return taken = malloc(1 << 20); }

static volatile int depth;

static int deep(int n) { // no tail call
	depth = n;
	return deep(n + 1) + depth;
}

int main(int argc, char **argv) {
	const char *arg = argc > 1 ? argv[1] : "";
	if (does(arg, "print")) {
		put(1, "hello\nb");
		put(1, "ye");
		return 0;
	}
	if (does(arg, "tell")) {
		for (int i = 2; i < argc; i++) say("arg ", argv[i]);
		say("greeting ", getenv("GREETING"));
		say("config ", getenv("MIW_CONFIG"));
		say("key ", getenv("MIW_KEY"));
		say("token ", getenv("MIW_TOKEN"));
		say("name ", argv[0]);
		say("id ", getenv("MIW_WORKER_ID"));
		return 0;
	}
	if (does(arg, "fail")) {
		put(2, "failing\n");
		return 3;
	}
	if (does(arg, "finish")) {
		if (miw_draining()) return 0;
		put(1, "ready\n");
		while (!miw_wait(20)) {}
		if (!miw_draining()) return 4;
		put(1, "finishing\n");
		return 0;
	}
	if (does(arg, "wait")) {
		put(1, "ready\n");
		if (!miw_wait(-1)) return 4;
		put(1, "finishing\n");
		return 0;
	}
	if (does(arg, "stdin")) {
		char c;
		put(1, "ready\n");
		if (read(0, &c, 1) != 0) return 4;
		put(1, "finishing\n");
		return 0;
	}
	if (does(arg, "stay")) { // for ever, in a loop without any call
		put(1, "ready\n");
		for (volatile int i = 0;; i++) {}
	}
	if (does(arg, "call")) { // for ever, in calls
		put(1, "ready\n");
		for (;;) miw_draining();
	}
	if (does(arg, "sleep")) {
		put(1, "ready\n");
		sleep(1000000);
		return 5;
	}
	if (does(arg, "nap")) {
		struct timespec t = {0, 1000000};
		nanosleep(&t, 0);
		return time(0) > 1000000000 ? 0 : 6;
	}
	if (does(arg, "grow")) { // as a program does that counts on its memory
		for (;;)
			if (!take()) abort();
	}
	if (does(arg, "careful")) { // as one does that does not
		int n = 0;
		while (take()) n++;
		put(1, "full\n");
		return n > 10 ? 0 : 7;
	}
	if (does(arg, "full")) {
		while (take()) {}
		return 8;
	}
	if (does(arg, "trap")) __builtin_trap();
	if (does(arg, "deep")) return deep(0);
	if (does(arg, "minus")) _exit(-1);
	if (does(arg, "zero")) exit(0);
	return 99;
}
