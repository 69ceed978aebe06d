package redisledger

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A process distinguishes one process from all others, on this machine and on any other,
// before and after a reboot. Its fields are stored in the registry.
type process struct {
	Host    string `json:"host"`    // for messages only
	Machine string `json:"machine"` // /etc/machine-id; for messages only, images share it
	Boot    string `json:"boot"`    // of the running kernel; differs after a reboot
	// Space is the namespace of process ids. Two containers on one machine
	// may have equal ids and cannot see each other's processes.
	Space   string `json:"space"`
	PID     int    `json:"pid"`
	Started int64  `json:"started"` // in clock ticks since the boot
}

func (p process) String() string { return fmt.Sprintf("process %d on %s", p.PID, p.Host) }

// A fate is what is known of another process.
type fate uint8

const (
	// fateUnknown: it ran elsewhere, or is not visible from here. Only its heartbeat tells.
	fateUnknown fate = iota
	alive
	gone
)

// self identifies this process. It reads /proc. On a platform without it, and where it does not
// show everything, fields stay empty. Then the fate of a predecessor is unknown, and a restart
// after a crash waits for failover_after.
func self() process {
	p := process{PID: os.Getpid()}
	p.Host, _ = os.Hostname()
	p.Machine = readLine("/etc/machine-id")
	p.Boot = readLine("/proc/sys/kernel/random/boot_id")
	p.Space, _ = os.Readlink("/proc/self/ns/pid")
	p.Started, _, _ = stat(p.PID)
	return p
}

// fateOf returns what has become of another process, as far as p can tell. After a reboot it
// cannot: a container that moved to another machine has its old name and image there, but may
// still be running where it was.
func (p process) fateOf(other process) fate {
	if p.Boot == "" || p.Boot != other.Boot || p.Space == "" || p.Space != other.Space || other.Started == 0 {
		return fateUnknown
	}
	started, ended, ok := stat(other.PID)
	if !ok {
		// Where /proc hides the processes of others, it hides the first one.
		if _, _, seesAll := stat(1); !seesAll {
			return fateUnknown
		}
		return gone
	}
	if ended || started != other.Started {
		return gone
	}
	return alive
}

// stat reads when a process was started, and whether it has ended and only waits for its parent
// to reap it.
func stat(pid int) (started int64, ended, ok bool) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false, false
	}
	// The name, in parentheses, may contain anything. After it come the state,
	// field 3, and the start time, field 22.
	_, rest, found := bytes.Cut(line[max(0, bytes.LastIndexByte(line, ')')):], []byte(") "))
	fields := strings.Fields(string(rest))
	if !found || len(fields) < 20 {
		return 0, false, false
	}
	started, err = strconv.ParseInt(fields[19], 10, 64)
	return started, fields[0] == "Z" || fields[0] == "X", err == nil
}

func readLine(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
