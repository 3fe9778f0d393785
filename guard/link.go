//go:build linux

package guard

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// link is one guard process, as its owner sees it.
type link struct {
	pid    int
	mark   string
	conn   *net.UnixConn
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process is gone and all it said was heard
	err    error         // how it ended; set before ended is closed
	killed atomic.Bool   // by us

	mu     sync.Mutex
	queue  []outgoing    // guarded by mu
	closed bool          // guarded by mu
	work   chan struct{} // of size 1
}

// outgoing is a message on its way, with descriptors that are closed once it is sent.
type outgoing struct {
	frame []byte
	files []int
	feed  bool
}

// launch starts a guard process and waits until it stands.
func (g *Guard) launch() (*link, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "guard"), os.NewFile(uintptr(pair[1]), "node")
	defer ours.Close()
	defer theirs.Close()
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, fmt.Errorf("open own pidfd (needs Linux 5.3): %w", err)
	}
	me := os.NewFile(uintptr(self), "pidfd")
	defer me.Close()
	stat, err := readProc(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("read own process (needs /proc): %w", err)
	}
	fc, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("use control socket: %w", err)
	}
	conn := fc.(*net.UnixConn)
	cmd := &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{filepath.Base(os.Args[0]) + ": guard"},
		Env:         guardEnv(os.Environ()),
		Dir:         "/",
		Stderr:      g.cfg.Stderr,
		ExtraFiles:  []*os.File{theirs, me},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start guard process: %w", err)
	}
	theirs.Close()
	l := &link{pid: cmd.Process.Pid, conn: conn, cmd: cmd, ended: make(chan struct{}), work: make(chan struct{}, 1)}
	init := &initMessage{Version: protocolVersion, Dir: g.cfg.Dir, Owner: os.Getpid(), OwnerStart: stat.start, StopBudget: g.cfg.StopBudget, Notes: g.say}
	if g.cfg.Dir == "" {
		init.Mark = g.mark
	}
	in, err := l.greet(init, readyTimeout)
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		conn.Close()
		return nil, fmt.Errorf("start guard process: %w", err)
	}
	go l.write()
	go l.follow(g, in)
	return l, nil
}

// greet says what to guard and waits for the guard's word.
func (l *link) greet(init *initMessage, within time.Duration) (in *bufio.Reader, err error) {
	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) { // which names a socket, and nothing to do about it
			err = fmt.Errorf("it did not answer within %v, so nothing was run: this machine has too much to do or no memory left; relieve it and try again", within)
		}
	}()
	if err := l.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return nil, err
	}
	frame, err := appendFrame(nil, message{Init: init})
	if err != nil {
		return nil, err
	}
	if _, err := l.conn.Write(frame); err != nil {
		return nil, err
	}
	in = bufio.NewReader(l.conn)
	m, err := readMessage(in)
	switch {
	case err != nil:
		return nil, fmt.Errorf("no answer: %w", err)
	case m.Failed != nil:
		return nil, failure(m.Failed)
	case m.Ready == nil:
		return nil, fmt.Errorf("%w: not ready", errFrame)
	}
	l.mark = m.Ready.Mark
	return in, l.conn.SetDeadline(time.Time{})
}

// readMessage reads one frame.
func readMessage(in *bufio.Reader) (m message, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return m, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxFrame {
		return m, fmt.Errorf("%w: of %d bytes", errFrame, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(in, body); err != nil {
		return m, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("%w: %w", errFrame, err)
	}
	return m, nil
}

// follow reads until the guard's end is closed, then waits for its process.
func (l *link) follow(g *Guard, in *bufio.Reader) {
	var err error
	for {
		var m message
		if m, err = readMessage(in); err != nil {
			break
		}
		g.hear(l, m)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		l.kill() // it talks nonsense
	}
	l.err = l.cmd.Wait()
	l.mu.Lock()
	l.closed = true
	for _, o := range l.queue {
		closeFiles(o.files)
	}
	l.queue = nil
	close(l.work)
	l.mu.Unlock()
	l.conn.Close()
	close(l.ended)
}

// put queues a message; it takes the descriptors over, unless it returns an error. A feed takes the place of one that waits.
func (l *link) put(m message, files []int) error {
	frame, err := appendFrame(nil, m)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrGuardDied
	}
	o := outgoing{frame: frame, files: files, feed: m.Feed != nil}
	if n := len(l.queue); o.feed && n > 0 && l.queue[n-1].feed {
		l.queue[n-1] = o
	} else {
		l.queue = append(l.queue, o)
	}
	select {
	case l.work <- struct{}{}:
	default:
	}
	return nil
}

// write sends what is queued, on a goroutine of its own: a guard that does not read holds up nobody else.
func (l *link) write() {
	for range l.work {
		for {
			l.mu.Lock()
			if len(l.queue) == 0 {
				l.mu.Unlock()
				break
			}
			o := l.queue[0]
			l.queue = l.queue[1:]
			l.mu.Unlock()
			err := l.transmit(o)
			closeFiles(o.files)
			if err != nil {
				break // the reader sees the same
			}
		}
	}
}

// transmit sends one message. The descriptors go with its first byte.
func (l *link) transmit(o outgoing) error {
	b := o.frame
	if len(o.files) > 0 {
		n, _, err := l.conn.WriteMsgUnix(b, unix.UnixRights(o.files...), nil)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	_, err := l.conn.Write(b)
	return err
}

// kill ends the guard process the hard way.
func (l *link) kill() {
	l.killed.Store(true)
	l.cmd.Process.Kill()
}

// dupFiles copies the descriptors, so that the caller may close its own at any time, and notes which are set.
func dupFiles(m *spawnMessage, stdio ...*os.File) (files []int, err error) {
	for i, f := range stdio {
		if f == nil {
			continue
		}
		conn, err := f.SyscallConn()
		if err == nil {
			cerr := conn.Control(func(fd uintptr) {
				var n int
				if n, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
					files = append(files, n)
				}
			})
			err = errors.Join(err, cerr)
		}
		if err != nil {
			closeFiles(files)
			return nil, fmt.Errorf("pass %s: %w", f.Name(), err)
		}
		m.Stdio[i] = true
	}
	return files, nil
}

func closeFiles(files []int) {
	for _, f := range files {
		unix.Close(f)
	}
}

// stripEnv returns env without the named variables.
func stripEnv(env []string, names ...string) (out []string) {
next:
	for _, v := range env {
		for _, n := range names {
			if strings.HasPrefix(v, n+"=") {
				continue next
			}
		}
		out = append(out, v)
	}
	return out
}
