package jepsen

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// markVariable is the environment variable by which the processes of a cluster
// are known, whoever has become their parent: folder of the cluster, slash, node.
const markVariable = "MIW_TORTURE"

func tracesAvailable() error {
	_, err := os.ReadDir("/proc/self/fd")
	return err
}

// marked lists the live processes of a cluster, with the node that each belongs to.
func marked(dir string) map[int]string {
	all := map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if node, ok := strings.CutPrefix(variableOf(pid, markVariable), dir+"/"); ok {
			all[pid] = node
		}
	}
	return all
}

// variableOf is a variable of the environment that a process was started with, ""
// if it has none, has ended or is not ours.
func variableOf(pid int, name string) string {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := bytes.CutPrefix(v, []byte(name+"=")); ok {
			return string(value)
		}
	}
	return ""
}

// parentOf is the parent of a process, 0 if it has ended.
func parentOf(pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:]) // state, parent
	if len(f) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(f[1]))
	return parent
}

// commandLine is what a process was started with.
func commandLine(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(string(bytes.ReplaceAll(raw, []byte{0}, []byte{' '})))
}

// socketOwner finds the node whose process opened a stream from an address to
// another; "" if there is none (any more).
func socketOwner(dir string, from, to netip.AddrPort) string {
	inode := socketInode(from, to)
	if inode == "" {
		return ""
	}
	want := "socket:[" + inode + "]"
	for pid, node := range marked(dir) {
		fds := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(fds)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if target, err := os.Readlink(filepath.Join(fds, e.Name())); err == nil && target == want {
				return node
			}
		}
	}
	return ""
}

// socketInode finds the socket with the local address from and the remote one to.
func socketInode(from, to netip.AddrPort) string {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		raw, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) > 9 && kernelAddr(f[1]) == from && kernelAddr(f[2]) == to && f[9] != "0" {
				return f[9]
			}
		}
	}
	return ""
}

// kernelAddr reads an address as /proc/net/tcp writes it: words of 32 bits in the
// machine's order, as hexadecimal digits.
func kernelAddr(s string) netip.AddrPort {
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	p, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(p))
}
