package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Other programs read the document: the fields of testdata/report.json must stay.
func TestDocument(t *testing.T) {
	idle := 0.5
	d := &Distribution{Count: 2, Mean: 1.5, P50: 1, P90: 2, P99: 2, P999: 2, Max: 2, Buckets: []Bucket{{1, 1}, {2, 1}}}
	r := Report{
		Format: format, Started: time.Date(2026, 11, 20, 13, 0, 0, 0, time.UTC), Seconds: 60, Version: "v1", Server: "v2", Redis: "7.0.15", Whole: true,
		Machine: Machine{OS: "linux", Arch: "amd64", Kernel: "6.1", CPU: "a processor", Cores: 2, Procs: 2, MemoryMB: 24000, Go: "go1.26"},
		Results: []Result{
			{Workload: "single", System: "embedded", Ledger: "disk", Tasks: 2, Payload: 200, Callers: 64, Batch: 1, Seconds: 1, TasksPerSecond: 2, Answers: d},
			{Workload: "steady", System: "http", Ledger: "redis", Tasks: 2, Payload: 200, Batch: 1000, Rate: 1000, Background: 3, Seconds: 1, TasksPerSecond: 2, FilledPerSecond: 4, Lateness: d,
				Faults: Faults{Early: 1, Lost: 2, Repeated: 3, Explained: 3}},
			{Workload: "memory", System: "embedded", Ledger: "disk", Tasks: 2, Payload: 200, Batch: 1000, Seconds: 1, FilledPerSecond: 4,
				Memory: &MemoryFacts{BytesPerTask: 300, ResidentMB: 20, IdleCPU: &idle, GCCPU: 0.1, GCMillis: 1}},
			{Workload: "restart", System: "embedded", Ledger: "disk", Tasks: 2, Payload: 200, Batch: 1000, Seconds: 1, FilledPerSecond: 4,
				Restart: &RestartFacts{Ready: 1000, FirstOverdue: 10, AllOverdue: 1001}},
		},
		Faults: Faults{Early: 1, Lost: 2, Repeated: 3, Explained: 3},
	}
	got, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "report.json")
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(got)); diff != "" {
		t.Errorf("format %d has changed: %s", format, diff)
	}
}

// Every fault is reported, and all of them at once.
func TestOptions(t *testing.T) {
	for _, test := range []struct {
		name   string
		o      Options
		faults []string // the beginnings of the messages
	}{
		{"zero", Options{}, nil},
		{"everything", Options{Workloads: []string{"burst", "fast"}, Ledgers: []string{"disk", "paper"}, Redis: "http://x", Dir: "/nowhere", Tasks: -1,
			Rates: []int{0, 10_000_001}, Duration: 25 * time.Hour, Callers: -5, Batch: 10_001, Payload: 5},
			[]string{"workload", "ledger", "redis", "redis", "dir", "tasks", "rate", "rate", "duration", "callers", "batch", "payload"}},
		{"redis without a URL", Options{Ledgers: []string{"redis"}}, []string{"redis"}},
		{"redis by its URL", Options{Redis: "redis://127.0.0.1:1"}, nil},
		{"a server", Options{Server: "http://127.0.0.1:7480", Token: "x"}, nil},
		{"a server and more", Options{Server: "7480", Ledgers: []string{"disk"}, Workloads: []string{"memory", "restart", "burst"}}, []string{"server", "server", "workload", "workload"}},
		{"a token without a server", Options{Token: "x"}, []string{"token"}},
		{"nothing survives", Options{Workloads: []string{"restart"}, Ledgers: []string{"memory"}}, []string{"workload"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.o.Validate()
			if err == nil {
				if len(test.faults) > 0 {
					t.Errorf("want %v", test.faults)
				}
				return
			}
			var got []string
			for line := range strings.Lines(err.Error()) {
				if _, fault, ok := strings.Cut(line, "* "); ok {
					name, _, _ := strings.Cut(fault, ":")
					got = append(got, name)
				}
			}
			if diff := cmp.Diff(test.faults, got); diff != "" {
				t.Errorf("%s\n%v", diff, err)
			}
		})
	}
}
