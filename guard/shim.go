//go:build linux

package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// command is what a shim becomes.
type command struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
}

// shimFailure is what a shim says when it could not become the command. If it could, its socket closes without a word.
type shimFailure struct {
	Code   int    `json:"code"`
	Reason string `json:"reason"`
}

// goByte lets a shim go on: its record is on disk.
const goByte = 'g'

// startShim forks the process that becomes the command once it is told so. It is the leader of a group of its own and is
// killed by the kernel if this thread, that is the guard, dies. The socket returned is the way to tell it.
func startShim(m *spawnMessage, files []int, mark, own string) (pid int, line shimLine, err error) {
	line.fd = -1
	var open []int
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, line, fmt.Errorf("make socket: %w", err)
	}
	open = append(open, pair[1])
	mem, err := commandFile(command{Argv: m.Argv, Env: withRun(withRun(m.Env, mark, m.Run), own, m.Run), Dir: m.Dir})
	if err != nil {
		unix.Close(pair[0])
		return 0, line, err
	}
	open = append(open, mem)
	stdio := [3]uintptr{}
	for i, set := range m.Stdio {
		if set {
			stdio[i] = uintptr(files[0])
			files = files[1:]
			continue
		}
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			unix.Close(pair[0])
			return 0, line, fmt.Errorf("open /dev/null: %w", err)
		}
		open = append(open, null)
		stdio[i] = uintptr(null)
	}
	pid, err = syscall.ForkExec("/proc/self/exe", []string{"miw-shim"}, &syscall.ProcAttr{
		Env:   []string{roleVariable + "=" + roleShim, "GOGC=off", "GOMAXPROCS=1"},
		Files: []uintptr{stdio[0], stdio[1], stdio[2], uintptr(pair[1]), uintptr(mem)},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		unix.Close(pair[0])
		return 0, line, fmt.Errorf("fork: %w", err)
	}
	unix.SetNonblock(pair[0], true)
	line.fd = pair[0]
	return pid, line, nil
}

// commandFile puts the command into memory that the shim inherits. Its environment is not the shim's own, since a variable in
// it could upset the runtime.
func commandFile(c command) (int, error) {
	fd, err := unix.MemfdCreate("miw-command", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make memory file: %w", err)
	}
	b, err := json.Marshal(c)
	if err == nil {
		err = writeAll(fd, b)
	}
	if err == nil {
		_, err = unix.Seek(fd, 0, io.SeekStart)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("fill memory file: %w", err)
	}
	return fd, nil
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// shimMain is the life of a shim: wait for the word, then become the command.
func shimMain() int {
	for _, fd := range []int{shimControlFD, shimCommandFD} {
		unix.CloseOnExec(fd)
	}
	closeInherited(shimFDs)
	var c command
	if err := json.NewDecoder(os.NewFile(shimCommandFD, "command")).Decode(&c); err != nil {
		return shimFailed(CodeNotExecutable, err)
	}
	if !awaitGo() {
		return CodeNotExecutable // the guard is gone, or has thought better of it
	}
	if err := os.Chdir(c.Dir); err != nil {
		return shimFailed(CodeNotExecutable, err)
	}
	path, err := lookPath(c.Argv[0], c.Env)
	if err == nil {
		err = syscall.Exec(path, c.Argv, c.Env)
	}
	if errors.Is(err, syscall.ENOENT) && !exists(path) {
		return shimFailed(CodeNotFound, ErrNotFound)
	}
	return shimFailed(CodeNotExecutable, err)
}

func awaitGo() bool {
	var b [1]byte
	for {
		n, err := unix.Read(shimControlFD, b[:])
		if err == unix.EINTR {
			continue
		}
		return err == nil && n == 1 && b[0] == goByte
	}
}

func shimFailed(code int, err error) int {
	b, merr := json.Marshal(shimFailure{Code: code, Reason: err.Error()})
	if merr == nil {
		writeAll(shimControlFD, b)
	}
	return code
}

// lookPath finds a command as a shell does, in the PATH of the command's own environment.
func lookPath(name string, env []string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, nil
	}
	var path string
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, "PATH="); ok {
			path = rest
		}
	}
	denied := ""
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		st, err := os.Stat(file)
		if err != nil || st.IsDir() {
			continue
		}
		if unix.Access(file, unix.X_OK) == nil {
			return file, nil
		}
		denied = file
	}
	if denied != "" {
		return denied, syscall.EACCES
	}
	return "", syscall.ENOENT
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return path != "" && err == nil
}

// shimLine is the guard's end of the socket to a shim.
type shimLine struct {
	fd   int // -1 once the shim is one no more
	said []byte
}

// let tells the shim to go on.
func (l *shimLine) let() error {
	_, err := unix.Write(l.fd, []byte{goByte})
	return err
}

// hear reads what the shim has said. done is false while it is still a shim.
func (l *shimLine) hear() (failure *shimFailure, done bool) {
	var buf [4096]byte
	for {
		n, err := unix.Read(l.fd, buf[:])
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return nil, false
		case err == nil && n > 0:
			l.said = append(l.said, buf[:n]...)
			continue
		}
		l.close()
		if len(l.said) == 0 {
			return nil, true
		}
		failure = new(shimFailure)
		if err := json.Unmarshal(l.said, failure); err != nil {
			*failure = shimFailure{Code: CodeNotExecutable, Reason: string(l.said)}
		}
		return failure, true
	}
}

func (l *shimLine) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
}
