package bench

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// A Machine is where figures were measured.
type Machine struct {
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Kernel   string `json:"kernel,omitempty"`
	CPU      string `json:"cpu,omitempty"`
	Cores    int    `json:"cores"`
	Procs    int    `json:"gomaxprocs"`
	MemoryMB int    `json:"memory_mb,omitempty"`
	Go       string `json:"go"`
}

// ThisMachine reads what it can; on a platform without /proc some stays empty.
func ThisMachine() Machine {
	m := Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
		Go: runtime.Version(), CPU: lineOf("/proc/cpuinfo", "model name"),
	}
	kib, _, _ := strings.Cut(lineOf("/proc/meminfo", "MemTotal"), " ")
	if n, err := strconv.Atoi(kib); err == nil {
		m.MemoryMB = n >> 10
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(text))
	}
	return m
}

// lineOf returns the text after a name and a colon in a file.
func lineOf(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
