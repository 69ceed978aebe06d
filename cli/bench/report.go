package bench

import (
	"errors"
	"fmt"
	"time"
)

// ErrBroken is returned by Report.Err when a promise was broken.
var ErrBroken = errors.New("a promise was broken")

// A Report is what `lapse bench --json` prints. Names and meanings of fields stay;
// Format grows when that is not possible.
type Report struct {
	Format  int       `json:"format"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Version string    `json:"lapse"` // of the program that measured
	// Server is the version of the server that was measured, with --server.
	Server  string   `json:"server,omitempty"`
	Redis   string   `json:"redis,omitempty"` // its version
	Machine Machine  `json:"machine"`
	Results []Result `json:"results"`
	Whole   bool     `json:"whole"` // false if the run was interrupted or failed
	Faults  Faults   `json:"faults"`
}

const format = 1

// A Result is one workload on one system. Fields that do not apply to the workload are left out.
type Result struct {
	Workload string `json:"workload"`
	System   string `json:"system"` // embedded or http, or the name of a peer
	Ledger   string `json:"ledger,omitempty"`

	Tasks      int `json:"tasks"`
	Payload    int `json:"payload_bytes"`
	Callers    int `json:"callers,omitempty"`
	Batch      int `json:"batch,omitempty"` // tasks a request
	Rate       int `json:"rate,omitempty"`  // tasks that fall due in a second
	Background int `json:"background,omitempty"`

	// Seconds is how long it took: single, batch, memory: to schedule; burst,
	// steady: from the first deadline until all was handled and forgotten;
	// restart: until ready.
	Seconds        float64 `json:"seconds"`
	TasksPerSecond float64 `json:"tasks_per_s,omitempty"`
	// FilledPerSecond is how many were scheduled a second, where the result measures something
	// else.
	FilledPerSecond float64 `json:"filled_per_s,omitempty"`

	Answers  *Distribution `json:"answers,omitempty"`  // single, batch: how long a request took
	Lateness *Distribution `json:"lateness,omitempty"` // burst, steady
	Memory   *MemoryFacts  `json:"memory,omitempty"`
	Restart  *RestartFacts `json:"restart,omitempty"`

	Faults
}

// Faults count tasks. All are zero without a fault.
type Faults struct {
	Early    int `json:"early"`    // deliveries before the deadline
	Lost     int `json:"lost"`     // accepted, and never delivered
	Repeated int `json:"repeated"` // deliveries beyond the first
	// Explained is how many of those, at most, have a reason that the system knows.
	Explained int `json:"explained"`
}

// Broken reports whether a promise was broken.
func (f Faults) Broken() bool { return f.Early > 0 || f.Lost > 0 || f.Repeated > f.Explained }

func (f *Faults) add(o Faults) {
	f.Early += o.Early
	f.Lost += o.Lost
	f.Repeated += o.Repeated
	f.Explained += o.Explained
}

func (r *Report) add(result Result) {
	r.Results = append(r.Results, result)
	r.Faults.add(result.Faults)
}

// Err is ErrBroken, with the broken promises, if any result has a fault.
func (r *Report) Err() error {
	var all []error
	for _, result := range r.Results {
		if result.Broken() {
			all = append(all, fmt.Errorf("%w: %s on %s %s: %d early, %d lost, %d repeated of which at most %d are explained", ErrBroken,
				result.Workload, result.System, result.Ledger, result.Early, result.Lost, result.Repeated, result.Explained))
		}
	}
	return errors.Join(all...)
}
