package bench

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
)

// Names of workloads and ledgers, in the order in which they run.
var (
	Workloads = []string{"single", "batch", "burst", "steady", "memory", "restart"}
	Ledgers   = []string{"memory", "disk", "redis"}
)

// inProcess are the workloads that measure the process, and need a ledger of their own.
var inProcess = []string{"memory", "restart"}

// Options select what to measure. The zero value measures everything that is possible without
// Redis, embedded.
type Options struct {
	// Workloads to run. Default: all that are possible.
	Workloads []string
	// Ledgers to run them on. Default: memory, disk, and redis if there is a URL.
	// Must be empty with Server.
	Ledgers []string
	// Redis is the URL for the ledger redis.
	Redis string
	// Dir is where the temporary directories of the ledger disk are made. Default: the working
	// directory, since a temporary directory may lie in memory.
	Dir string

	// Server is the URL of a running server to measure instead. Token is the token that it needs.
	Server, Token string
	// HTTP puts a server of this process before each ledger.
	HTTP bool

	// Tasks of each workload, 1 to 999,999,999; not of steady. Default: single
	// 100,000, batch 500,000, burst 100,000 and then 1,000,000, memory and restart
	// 1,000,000.
	Tasks int
	// Rates of steady, 1 to 10,000,000 tasks a second. Default 1,000, 10,000 and
	// 100,000.
	Rates []int
	// Duration of steady, and of the idle time of memory, 10 ms to 1 h. Default 10 s.
	Duration time.Duration
	// Callers of single, 1 to 10,000. Default 64.
	Callers int
	// Batch is the number of tasks a request, 1 to 10,000. Default 1,000.
	Batch int
	// Payload is the size of a payload in bytes, MinPayload to 64 KiB. Default 200.
	Payload int

	// Version of this program, for the report.
	Version string
	// Progress is called with messages about the progress. Default: none.
	Progress io.Writer

	rest time.Duration // for tests; 0 means restBefore
}

func (o Options) withDefaults() (Options, error) {
	var all *multierror.Error
	fault := func(format string, args ...any) { all = multierror.Append(all, fmt.Errorf(format, args...)) }
	among := func(name string, chosen, known []string) {
		for _, c := range chosen {
			if !slices.Contains(known, c) {
				fault("%s: %q is none of %s", name, c, strings.Join(known, ", "))
			}
		}
	}
	within := func(name string, v *int, def, low, high int) {
		if *v == 0 {
			*v = def
		}
		if *v < low || *v > high {
			fault("%s: must be from %d to %d", name, low, high)
		}
	}
	among("workload", o.Workloads, Workloads)
	among("ledger", o.Ledgers, Ledgers)
	if o.Server != "" {
		o.checkServer(fault)
	} else {
		o.checkLedgers(fault)
	}
	if o.Tasks != 0 {
		within("tasks", &o.Tasks, 0, 1, maxTasks)
	}
	if len(o.Rates) == 0 {
		o.Rates = []int{1000, 10_000, 100_000}
	}
	o.Rates = slices.Clone(o.Rates)
	for i := range o.Rates {
		within("rate", &o.Rates[i], -1, 1, 10_000_000)
	}
	if o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Duration < 10*time.Millisecond || o.Duration > time.Hour {
		fault("duration: must be from 10ms to 1h")
	}
	within("callers", &o.Callers, 64, 1, 10_000)
	within("batch", &o.Batch, 1000, 1, tasks.MaxBatch)
	within("payload", &o.Payload, 200, MinPayload, 64<<10)
	if o.rest == 0 {
		o.rest = restBefore
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o, all.ErrorOrNil()
}

func (o *Options) checkServer(fault func(string, ...any)) {
	if u, err := url.Parse(o.Server); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		fault("server: want a URL such as http://127.0.0.1:7480")
	}
	if len(o.Ledgers) > 0 || o.Redis != "" || o.HTTP {
		fault("server: a running server has its ledger already: neither ledger, redis nor http goes with it")
	}
	if len(o.Workloads) == 0 {
		o.Workloads = slices.DeleteFunc(slices.Clone(Workloads), func(w string) bool { return slices.Contains(inProcess, w) })
	}
	for _, w := range inProcess {
		if slices.Contains(o.Workloads, w) {
			fault("workload: %s needs a process and a ledger of its own, and cannot be measured on a running server", w)
		}
	}
}

func (o *Options) checkLedgers(fault func(string, ...any)) {
	if o.Token != "" {
		fault("token: goes with server only")
	}
	if o.Redis != "" {
		if err := redisledger.ParseURL(o.Redis); err != nil {
			fault("redis: %w", err)
		}
	}
	if len(o.Ledgers) == 0 {
		o.Ledgers = []string{"memory", "disk"}
		if o.Redis != "" {
			o.Ledgers = Ledgers
		}
	}
	switch {
	case slices.Contains(o.Ledgers, "redis") && o.Redis == "":
		fault("redis: the ledger redis needs a URL")
	case !slices.Contains(o.Ledgers, "redis") && o.Redis != "":
		fault("redis: the URL is for the ledger redis, which is not among the chosen ones")
	}
	if len(o.Workloads) == 0 {
		o.Workloads = Workloads
	} else if slices.Equal(o.Workloads, []string{"restart"}) && slices.Equal(o.Ledgers, []string{"memory"}) {
		fault("workload: restart needs a ledger that survives, disk or redis")
	}
	if o.Dir == "" {
		o.Dir = "."
	}
	if f, err := os.Stat(o.Dir); slices.Contains(o.Ledgers, "disk") && (err != nil || !f.IsDir()) {
		fault("dir: %w", errors.Join(err, errors.New("want a directory that exists")))
	}
}

// Validate reports all faults at once.
func (o Options) Validate() error {
	_, err := o.withDefaults()
	return err
}
