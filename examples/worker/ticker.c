// A worker for the runtime wasm: it says each second that it is there, until it should finish.
// ticker.wasm is made of it by any compiler for WASI, for example clang 14.0.6 with wasi-libc:
//
//	clang --target=wasm32-wasi -Os -s -o ticker.wasm ticker.c
#include <stdio.h>
#include <stdlib.h>

// Returns 1 as soon as the worker should finish, or 0 after that many milliseconds.
__attribute__((import_module("miwnode"), import_name("wait"))) int miw_wait(int ms);

int main(int argc, char **argv) {
	setvbuf(stdout, NULL, _IOLBF, BUFSIZ); // a line is logged when it is written
	printf("%s began under token %s\n", argv[0], getenv("MIW_TOKEN"));
	for (int n = 1;; n++) {
		printf("tick %d\n", n);
		if (miw_wait(1000)) break;
	}
	printf("%s is done\n", argv[0]);
	return 0;
}
