package redisledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/ids"
)

// ErrUnfit is returned by Adopt, wrapped with what to change, when this Redis is
// too old or may evict tasks.
var ErrUnfit = errors.New("this Redis is not fit to keep tasks")

// minVersion is the oldest Redis that is supported. Older ones have no maintainers, and
// Lapse was not tested with them.
const minVersion = "6.2"

// fullAt is the share of its maxmemory above which Redis counts as full: accepted tasks
// still need room for retries and burials.
const fullAt = 0.95

// health is what is known of the servers. It learns it from INFO with every heartbeat.
type health struct {
	client        *conn.Client
	replication   *conn.Replication
	directory     *ids.Directory
	log           *slog.Logger
	forceEviction bool

	full atomic.Pointer[error] // why no new tasks are taken

	mu    sync.Mutex // guards everything below
	state recovery.Health
	since time.Time     // when the outage of state.Err began
	clock []clockSample // of the last heartbeats
}

// Health implements recovery.Reporter. The answers that it reports are those to heartbeats,
// ten in Options.FailoverAfter.
func (l *Ledger) Health() recovery.Health {
	h := l.health.now()
	h.Waiting = l.waits.List()
	lastAnswer, warnings := l.member.Report()
	h.Where, h.LastAnswer, h.Warnings = l.client.String(), lastAnswer, slices.Concat(h.Warnings, warnings)
	return h
}

// now is the state of the servers as it was last seen.
func (h *health) now() recovery.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.state
	now.Warnings = slices.Clone(now.Warnings)
	return now
}

// failed notes why Redis cannot be used, or nil.
func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state.Err = err
}

// Condition implements recovery.Conditioner.
func (l *Ledger) Condition() error {
	if full := l.health.full.Load(); full != nil {
		return *full
	}
	return nil
}

// noteFull notes why Redis takes no new tasks; nil means that it takes them. The next
// measurement may clear what a refused batch has noted.
func (h *health) noteFull(full error) {
	if full == nil {
		if h.full.Swap(nil) != nil {
			h.log.Info("Redis has room again")
		}
		return
	}
	if h.full.Swap(&full) == nil {
		h.log.Warn("Redis runs out of memory; new tasks are refused", "error", full)
	}
}

// note keeps the outcome of a heartbeat.
func (h *health) note(err error) {
	h.mu.Lock()
	before, since := h.state.Err, h.since
	h.state.Err = err
	if before == nil && err != nil {
		h.since = time.Now()
	}
	h.mu.Unlock()
	switch {
	case before == nil && err != nil:
		h.log.Warn("Redis does not answer as it should", "error", err)
	case before != nil && err == nil:
		h.log.Info("Redis answers again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// checkServers refuses servers that are not fit to keep tasks, and collects warnings about
// the others. It reads INFO: managed Redis services do not allow CONFIG.
func (h *health) checkServers(ctx context.Context) error {
	var warnings []string
	version := ""
	err := h.client.EachInfo(ctx, []string{"server", "memory", "persistence"}, func(in conn.Info) error {
		v := in["redis_version"]
		if version == "" || conn.CompareVersions(v, version) < 0 {
			version = v
		}
		found, err := fit(in, h.forceEviction)
		warnings = append(warnings, found...)
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(warnings)
	warnings = slices.Compact(warnings)
	h.mu.Lock()
	known := slices.Equal(h.state.Warnings, warnings)
	h.state.Version, h.state.Warnings = version, warnings
	h.mu.Unlock()
	if !known {
		for _, w := range warnings {
			h.log.Warn("Redis: " + w)
		}
	}
	return h.measure(ctx)
}

// fit refuses a server, or warns of it. With force, it warns of what can be overridden.
func fit(in conn.Info, force bool) (warnings []string, err error) {
	if v := in["redis_version"]; conn.CompareVersions(v, minVersion) < 0 {
		return nil, fmt.Errorf("%w: version %s, at least %s is needed", ErrUnfit, v, minVersion)
	}
	if message := evicting(in); message != "" {
		if !force {
			return nil, fmt.Errorf("%w: %s", ErrUnfit, message)
		}
		warnings = append(warnings, message)
	}
	if in["aof_enabled"] == "0" {
		warnings = append(warnings, "appendonly is off: a crash of Redis loses the tasks of the minutes before")
	}
	return warnings, nil
}

const evictionSetting = "maxmemory-policy"

// evicting returns a warning if a server may delete tasks; it is empty otherwise.
func evicting(in conn.Info) string {
	if policy := in["maxmemory_policy"]; policy != "noeviction" {
		return fmt.Sprintf(evictionSetting+" is %s: Redis may delete tasks when its memory is full; set it to noeviction", policy)
	}
	return ""
}

// noteWarning keeps the current warning about a setting, or none, and logs a new one: the
// policy of a running Redis can be changed, and replicas come and go.
func (h *health) noteWarning(setting, warning string) {
	h.mu.Lock()
	s := &h.state
	known := warning == "" || slices.Contains(s.Warnings, warning)
	s.Warnings = slices.DeleteFunc(s.Warnings, func(w string) bool { return strings.HasPrefix(w, setting) })
	if warning != "" {
		s.Warnings = append(s.Warnings, warning)
	}
	h.mu.Unlock()
	if !known {
		h.log.Warn("Redis: " + warning)
	}
}

// A clockSample is the distance of the server's clock, and by how much it may be wrong: the server
// read its clock at some moment of the call.
type clockSample struct{ ahead, err time.Duration }

// clockSamples is how many samples are kept: those of about failover_after. The shortest call is
// the best measure of the clock.
const clockSamples = 10

func (h *health) noteClockLocked(s clockSample) {
	if h.clock = append(h.clock, s); len(h.clock) > clockSamples {
		h.clock = h.clock[1:]
	}
	best := slices.MinFunc(h.clock, func(a, b clockSample) int { return cmp.Compare(a.err, b.err) })
	h.state.ClockAhead, h.state.ClockError = best.ahead, best.err
}

// measure notes the latency, the clocks' distance, and whether memory is running out.
func (h *health) measure(ctx context.Context) error {
	began := time.Now()
	now, err := h.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	latency := time.Since(began)
	var full error
	policy, replicas := "", conn.MaxReplicas
	if err := h.client.EachInfo(ctx, []string{"memory", "replication"}, func(in conn.Info) error {
		if in["role"] == "master" {
			h.directory.NoteServer(in["master_replid"])
		}
		policy = cmp.Or(policy, evicting(in))
		replicas = min(replicas, in.Replicas())
		limit, used := in.Number("maxmemory"), in.Number("used_memory")
		if limit > 0 && used > fullAt*limit {
			full = fmt.Errorf("%w: Redis uses %.0f of %.0f MiB", recovery.ErrFull, used/(1<<20), limit/(1<<20))
		}
		return nil
	}); err != nil {
		return err
	}
	h.directory.Settle()
	h.noteFull(full)
	h.noteWarning(evictionSetting, policy)
	h.noteWarning(conn.ReplicaSetting, h.replication.Lack(replicas))
	h.mu.Lock()
	h.state.Latency = latency
	h.noteClockLocked(clockSample{now.Sub(began.Add(latency / 2)).Round(time.Microsecond), latency / 2})
	h.mu.Unlock()
	return nil
}
