package jepsen_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/miwnode/miwnode/jepsen"
)

// dial opens a stream and holds it until its standard input ends.
func dial(addr string) int {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Close()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func loopback(t *testing.T) *jepsen.Loopback {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("who sends is known on Linux only")
	}
	l, err := jepsen.NewLoopbackFrom([]string{"a", "b"}, "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// pair is a stream from a to b, both of its ends.
func pair(t *testing.T, l *jepsen.Loopback) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", l.Own("b").String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if client, err = net.Dial("tcp", l.Told("b").String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text + "\n")); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got, err := bufio.NewReaderSize(c, 16).ReadString('\n')
	if err != nil || got != want+"\n" {
		t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

// TestLoopback_Stream ensures that a cut holds up one direction and not the
// other, that nothing is lost when it is mended, and that ends pass.
func TestLoopback_Stream(t *testing.T) {
	l := loopback(t)
	client, server := pair(t, l)
	say(t, client, "one")
	hear(t, server, "one")

	if err := l.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	var mended atomic.Bool
	heard := make(chan bool, 1)
	go func() {
		hear(t, server, "two")
		heard <- mended.Load()
	}()
	say(t, client, "two")
	say(t, server, "back")
	hear(t, client, "back")
	mended.Store(true)
	if err := l.Mend("a", "b"); err != nil {
		t.Fatal(err)
	}
	if !<-heard {
		t.Error("it passed while the direction was cut")
	}

	client.(*net.TCPConn).CloseWrite()
	if n, err := server.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read %d, %v after the other side had ended; want EOF", n, err)
	}
	say(t, server, "still")
	hear(t, client, "still")
	server.(*net.TCPConn).SetLinger(0)
	server.Close()
	if n, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d, %v after the other side had died; want a reset", n, err)
	}
}

// TestLoopback_NobodyListens ensures that a node that is down answers as such.
func TestLoopback_NobodyListens(t *testing.T) {
	l := loopback(t)
	c, err := net.Dial("tcp", l.Told("b").String())
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v; want a reset", err)
	}
}

// TestLoopback_Packets ensures that packets arrive from where their sender is
// known, and that a cut loses them.
func TestLoopback_Packets(t *testing.T) {
	l := loopback(t)
	a, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.Own("a")))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.Own("b")))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	send := func(from *net.UDPConn, text string) {
		t.Helper()
		if _, err := from.WriteToUDPAddrPort([]byte(text), l.Told("b")); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(want, sender string) {
		t.Helper()
		buf := make([]byte, 100)
		n, from, err := b.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:n]) != want || from != l.Told(sender) {
			t.Fatalf("received %q from %v, %v; want %q from %v", buf[:n], from, err, want, l.Told(sender))
		}
	}
	send(a, "one")
	receive("one", "a")
	if err := l.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	send(a, "lost")
	send(b, "own") // comes the same way, after it
	receive("own", "b")
	if err := l.Mend("a", "b"); err != nil {
		t.Fatal(err)
	}
	send(a, "two")
	receive("two", "a")
}

// TestSocketOwner ensures that the sender of a stream is found by its process.
func TestSocketOwner(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("who sends is known on Linux only")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(self, "dial", ln.Addr().String())
	cmd.Env = append(os.Environ(), jepsen.MarkVariable+"="+dir+"/n7")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	from, to := netip.MustParseAddrPort(c.RemoteAddr().String()), netip.MustParseAddrPort(c.LocalAddr().String())
	if got := jepsen.SocketOwner(dir, from, to); got != "n7" {
		t.Errorf("owner %q, want n7", got)
	}
	if got := jepsen.SocketOwner(strings.TrimSuffix(dir, "1")+"0", from, to); got != "" {
		t.Errorf("owner %q in another cluster, want none", got)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
