package identity

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A Process distinguishes one process from all others, on this machine and on any other,
// before and after a reboot. Its fields are stored in the registry.
type Process struct {
	Host    string `json:"host"`    // for messages only
	Machine string `json:"machine"` // /etc/machine-id; for messages only, images share it
	Boot    string `json:"boot"`    // of the running kernel; differs after a reboot
	// Space is the namespace of process ids. Two containers on one machine
	// may have equal ids and cannot see each other's processes.
	Space   string `json:"space"`
	PID     int    `json:"pid"`
	Started int64  `json:"started"` // in clock ticks since the boot
}

// String names the process, for people.
func (p Process) String() string { return fmt.Sprintf("process %d on %s", p.PID, p.Host) }

// A Fate is what is known of another process.
type Fate uint8

// The fates of a process.
const (
	// FateUnknown means that it ran elsewhere, or is not visible from here: only its heartbeat
	// tells.
	FateUnknown Fate = iota
	Alive
	Gone
)

// Self identifies this process. It reads /proc. On a platform without it, and where it does not
// show everything, fields stay empty. Then the fate of a predecessor is unknown, and a restart
// after a crash waits for failover_after.
func Self() Process {
	p := Process{PID: os.Getpid()}
	p.Host, _ = os.Hostname()
	p.Machine = readLine("/etc/machine-id")
	p.Boot = readLine("/proc/sys/kernel/random/boot_id")
	p.Space, _ = os.Readlink("/proc/self/ns/pid")
	p.Started, _, _ = stat(p.PID)
	return p
}

// FateOf returns what has become of another process, as far as p can tell. After a reboot it
// cannot: a container that moved to another machine has its old name and image there, but may
// still be running where it was.
func (p Process) FateOf(other Process) Fate {
	if p.Boot == "" || p.Boot != other.Boot || p.Space == "" || p.Space != other.Space || other.Started == 0 {
		return FateUnknown
	}
	started, ended, ok := stat(other.PID)
	if !ok {
		// Where /proc hides the processes of others, it hides the first one.
		if _, _, seesAll := stat(1); !seesAll {
			return FateUnknown
		}
		return Gone
	}
	if ended || started != other.Started {
		return Gone
	}
	return Alive
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
