//go:build linux

package guard

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// leaveImage lets go of the pages of the program's image that only the start has needed: most of the program is not the guard's.
// What is needed again comes back from the page cache, where the owner's process keeps it. Only pages that were never written are
// touched: the system says which mappings have no page of their own.
func leaveImage() {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	var from, to uintptr
	var mode, file string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if own, ok := strings.CutPrefix(line, "Anonymous:"); ok {
			if to > from && mode[1] == '-' && mode[3] == 'p' && strings.HasPrefix(file, "/") && strings.TrimSpace(own) == "0 kB" {
				unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
			}
			from, to = 0, 0
			continue
		}
		var offset, device string
		var inode uint64
		if name, _, _ := strings.Cut(line, " "); !strings.HasSuffix(name, ":") {
			file = ""
			if n, _ := fmt.Sscanf(line, "%x-%x %4s %s %s %d %s", &from, &to, &mode, &offset, &device, &inode, &file); n < 6 {
				from, to = 0, 0
			}
		}
	}
}
