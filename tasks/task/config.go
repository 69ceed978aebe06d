package task

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/recovery"
)

// Config configures a scheduler. The zero value of every field is its default.
type Config struct {
	// Node is the name of this node, shown in answers and metrics. Default: "local".
	Node string

	// MaxPending bounds the tasks in memory, 1 to 200,000,000. Default 20,000,000. A schedule
	// beyond it is answered ErrOverloaded. Replay is not bound by it: what was accepted once is
	// kept.
	MaxPending int
	// MaxBytes bounds the memory of their ids and records, 1 MiB to 1 TiB. Default 8 GiB. It is
	// enforced like MaxPending.
	MaxBytes int64
	// MaxInFlight bounds the deliveries that are not settled yet, over all topics, 1 to 10,000,000.
	// Default 100,000. It also bounds the schedules that wait for the ledger; beyond it a schedule
	// is answered ErrOverloaded.
	MaxInFlight int
	// MaxDeliveries bounds the deliveries that this process makes at the same time, over all
	// topics, 1 to 1,000,000. Default 4096. Past it topics share them by their Weight. Deliveries
	// that are pulled do not count.
	MaxDeliveries int
	// MaxPayload bounds a payload, in bytes, 1 to 16 MiB. Default 64 KiB.
	MaxPayload int

	// AnswerWithin is how long a caller waits for the ledger before the answer is ErrUnknown or
	// ErrUnavailable, 10 ms to 60 s. Default 2 s.
	AnswerWithin time.Duration
	// SweepEvery is the period of the sweep, 10 ms to 60 s. Default 1 s.
	SweepEvery time.Duration
	// SweepAt are times at which a full sweep runs: all of memory is searched for overdue tasks,
	// and compared with the ledger. Each is a cron expression of five fields (minute, hour, day of
	// month, month, day of week), in UTC unless it begins with a time zone, as in
	// "CRON_TZ=Europe/Berlin 0 3 * * *"; at most 100. A time that a suspended machine or a step of
	// the clock has left out is made up for, once. Default: none.
	SweepAt []string
	// SweepBacklog is how many ready tasks of the topics that this process delivers may wait before
	// a sweep runs at once and topics without a Concurrency of their own rise to
	// SweepMaxConcurrency, until no more than half as many wait; 1 to 200,000,000. Default 100,000.
	// Tasks of paused topics, and of those that are pulled, do not count: they wait for receivers.
	SweepBacklog int
	// SweepMaxConcurrency is how many deliveries at once a topic without a Concurrency of its own
	// may have during a backlog, as far as MaxInFlight allows; 64 (which is what it has anyway) to
	// 100,000. Default 1024.
	SweepMaxConcurrency int
	// SweepHelper says when this node helps the others: it takes ready tasks of topics that it
	// delivers itself, as long as its own backlog is less than half of SweepBacklog. An entry is
	// "backlog", for whenever another node has one, or a cron expression as in SweepAt, for each
	// minute that it names, whatever the others' backlogs are. A node that is idle helps with
	// backlogs in any case: while none of its own tasks waits and less than half of MaxDeliveries
	// is in use. At most 100 times. Default: none.
	SweepHelper []string
	// Grace is how long Close waits for running handlers, 1 ms to 10 min. Default 10 s.
	Grace time.Duration

	// Ways are the ways of delivery that topics may choose by their kind, besides Pull and Handler.
	// Default: none.
	Ways []Way

	// Spool takes in schedules that the ledger cannot take, if the caller has chosen no id for
	// them: on a disk of this machine while Redis is away. They are delivered in time, and moved to
	// the ledger when it is back, each once. It must keep settings, and the ledger must be a
	// recovery.SpoolMarks. The scheduler adopts it at Open and closes it. Default: none, and such
	// schedules are answered ErrUnavailable.
	Spool recovery.Ledger

	// Topics are settings that the program brings along, for topics that have none stored in the
	// ledger.
	Topics map[string]TopicSettings

	// Clock is the wall clock. Default time.Now.
	Clock func() time.Time
	// Log receives the messages for operators. Default slog.Default().
	Log *slog.Logger
	// Observer receives an event for each thing that happens to a task. Default: none. For a
	// listener that listens for a time only, or may be slow, see Scheduler.Subscribe.
	Observer Observer
	// Tracer makes spans of the calls that create tasks, and of attempts. Default: none. Tasks keep
	// the traces of their calls in any case, see WithTrace.
	Tracer Tracer

	// OnOutage says what becomes of deliveries while this node may have lost what it holds to other
	// nodes of the same ledger. Default OutageDeliver.
	OnOutage OnOutage
}

// Validate returns an error that reports everything that is out of range, all at once; nil if
// nothing is.
func (c Config) Validate() error {
	_, err := c.Check()
	return err
}

// A Checked is a Config whose defaults are filled in, with what follows from it.
type Checked struct {
	Config
	Times    *Times              // SweepAt
	Helps    Helping             // SweepHelper
	ByKind   Ways                // Ways, by kind
	Resolved map[string]Resolved // Topics, with what they ask for
}

// Check fills in the defaults of zero fields. Its error reports everything that is out of range.
func (c Config) Check() (Checked, error) {
	var all *multierror.Error
	if c.Node == "" {
		c.Node = "local"
	}
	if len(c.Node) > MaxIDBytes {
		all = multierror.Append(all, fmt.Errorf("node must be at most %d bytes long", MaxIDBytes))
	}
	all = within(all, "max_pending", &c.MaxPending, 20_000_000, 1, 200_000_000)
	all = within(all, "max_bytes", &c.MaxBytes, 8<<30, 1<<20, 1<<40)
	all = within(all, "max_in_flight", &c.MaxInFlight, 100_000, 1, 10_000_000)
	all = within(all, "max_deliveries", &c.MaxDeliveries, 4096, 1, 1_000_000)
	all = within(all, "max_payload", &c.MaxPayload, 64<<10, 1, 16<<20)
	all = within(all, "answer_within", &c.AnswerWithin, 2*time.Second, 10*time.Millisecond, time.Minute)
	all = within(all, "sweep.every", &c.SweepEvery, time.Second, 10*time.Millisecond, time.Minute)
	all = within(all, "sweep.backlog", &c.SweepBacklog, 100_000, 1, 200_000_000)
	all = within(all, "sweep.max_concurrency", &c.SweepMaxConcurrency, 1024, DefaultConcurrency, 100_000)
	var full Checked
	var err error
	if full.Times, err = ParseTimes("sweep.at", c.SweepAt); err != nil {
		all = multierror.Append(all, err)
	}
	if full.Helps, err = parseHelping(c.SweepHelper); err != nil {
		all = multierror.Append(all, err)
	}
	all = within(all, "shutdown.grace", &c.Grace, 10*time.Second, time.Millisecond, 10*time.Minute)
	if full.ByKind, err = NewWays(c.Ways); err != nil {
		all = multierror.Append(all, err)
	}
	switch c.OnOutage {
	case "":
		c.OnOutage = OutageDeliver
	case OutageDeliver, OutagePause:
	default:
		all = multierror.Append(all, fmt.Errorf("on_outage must be %s or %s", OutageDeliver, OutagePause))
	}
	full.Resolved = make(map[string]Resolved, len(c.Topics))
	for name, t := range c.Topics {
		if f := checkName("topic", name); f != "" {
			all = multierror.Append(all, fmt.Errorf("topics: %s", f))
		}
		if full.Resolved[name], err = full.ByKind.Resolve(name, t); err != nil {
			all = multierror.Append(all, fmt.Errorf("topics.%s: %w", name, err))
		}
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	full.Config = c
	return full, all.ErrorOrNil()
}

// within fills in the default of a zero value. It adds an error if the value is out of range.
func within[N int | int64 | time.Duration](all *multierror.Error, field string, v *N, def, low, high N) *multierror.Error {
	if *v == 0 {
		*v = def
	}
	if *v < low || *v > high {
		return multierror.Append(all, fmt.Errorf("%s must be from %v to %v", field, low, high))
	}
	return all
}

// An OnOutage says what becomes of deliveries while this node cannot tell whether another one has
// taken over what it holds: it has been cut off from the ledger, or was suspended, for so long that
// others may have found it dead. The ledger itself may be what is gone: from here that looks the
// same. It only matters where several nodes share a ledger; one that is alone never pauses.
//
// Either way nothing is answered about a task in the meantime (ErrUnavailable), and nothing of what
// this node says can change what another one holds.
type OnOutage string

// What a node may do in the meantime.
const (
	// OutageDeliver goes on delivering from memory: deadlines are met through an outage of the
	// ledger, and a task may be delivered twice if it was this node that was cut off. It is the
	// default. Such deliveries are counted in Stats.UnsureDeliveries.
	OutageDeliver OnOutage = "deliver"
	// OutagePause begins no delivery: no task is delivered by two nodes because one was cut off,
	// and all wait through an outage of the ledger.
	OutagePause OnOutage = "pause"
)
