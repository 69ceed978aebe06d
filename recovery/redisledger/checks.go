package redisledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
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

// Health implements recovery.Reporter. The answers that it reports are those to heartbeats,
// ten in Options.FailoverAfter.
func (l *Ledger) Health() recovery.Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.health
	h.Waiting = l.bulk.waits.List()
	h.Where, h.LastAnswer, h.Warnings = l.client.String(), l.lastAnswer, slices.Concat(h.Warnings, l.warnings)
	return h
}

// Condition implements recovery.Conditioner.
func (l *Ledger) Condition() error {
	if full := l.full.Load(); full != nil {
		return *full
	}
	return nil
}

// noteFull notes why Redis takes no new tasks; nil means that it takes them. The next
// measurement may clear what a refused batch has noted.
func (l *Ledger) noteFull(full error) {
	if full == nil {
		if l.full.Swap(nil) != nil {
			l.log.Info("Redis has room again")
		}
		return
	}
	if l.full.Swap(&full) == nil {
		l.log.Warn("Redis runs out of memory; new tasks are refused", "error", full)
	}
}

// note keeps the outcome of a heartbeat.
func (l *Ledger) note(err error) {
	l.mu.Lock()
	before, since := l.health.Err, l.silentSince
	l.health.Err = err
	if before == nil && err != nil {
		l.silentSince = time.Now()
	}
	l.mu.Unlock()
	switch {
	case before == nil && err != nil:
		l.log.Warn("Redis does not answer as it should", "error", err)
	case before != nil && err == nil:
		l.log.Info("Redis answers again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// checkServers refuses servers that are not fit to keep tasks, and collects warnings about
// the others. It reads INFO: managed Redis services do not allow CONFIG.
func (l *Ledger) checkServers(ctx context.Context) error {
	var warnings []string
	version := ""
	err := l.client.EachInfo(ctx, []string{"server", "memory", "persistence"}, func(in conn.Info) error {
		v := in["redis_version"]
		if version == "" || conn.CompareVersions(v, version) < 0 {
			version = v
		}
		found, err := fit(in, l.opts.ForceEviction)
		warnings = append(warnings, found...)
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(warnings)
	warnings = slices.Compact(warnings)
	l.mu.Lock()
	known := slices.Equal(l.health.Warnings, warnings)
	l.health.Version, l.health.Warnings = version, warnings
	l.mu.Unlock()
	if !known {
		for _, w := range warnings {
			l.log.Warn("Redis: " + w)
		}
	}
	return l.measure(ctx)
}

// fit refuses a server, or warns of it. With force, it warns of what can be overridden.
func fit(in conn.Info, force bool) (warnings []string, err error) {
	if v := in["redis_version"]; conn.CompareVersions(v, minVersion) < 0 {
		return nil, fmt.Errorf("%w: it is version %s, and %s is needed", ErrUnfit, v, minVersion)
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
func (l *Ledger) noteWarning(setting, warning string) {
	l.mu.Lock()
	h := &l.health
	known := warning == "" || slices.Contains(h.Warnings, warning)
	h.Warnings = slices.DeleteFunc(h.Warnings, func(w string) bool { return strings.HasPrefix(w, setting) })
	if warning != "" {
		h.Warnings = append(h.Warnings, warning)
	}
	l.mu.Unlock()
	if !known {
		l.log.Warn("Redis: " + warning)
	}
}

// measure notes the latency, the clocks' distance, and whether memory is running out.
func (l *Ledger) measure(ctx context.Context) error {
	began := time.Now()
	now, err := l.client.Time(ctx).Result()
	if err != nil {
		return err
	}
	latency := time.Since(began)
	var full error
	policy, replicas := "", conn.MaxReplicas
	if err := l.client.EachInfo(ctx, []string{"memory", "replication"}, func(in conn.Info) error {
		if in["role"] == "master" {
			l.directory.NoteServer(in["master_replid"])
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
	l.directory.Settle()
	l.noteFull(full)
	l.noteWarning(evictionSetting, policy)
	l.noteWarning(conn.ReplicaSetting, l.replication.Lack(replicas))
	l.mu.Lock()
	l.health.Latency = latency
	l.health.ClockAhead = now.Sub(began.Add(latency / 2)).Round(time.Microsecond)
	l.mu.Unlock()
	return nil
}

// dataset returns the data set's layout and id, and creates it if it is missing. In the log,
// the id distinguishes a Redis that has lost everything from one that has lost some shards.
func (l *Ledger) dataset(ctx context.Context) (string, error) {
	key := l.keys.Dataset()
	id, err := l.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		if err := l.client.SetNX(ctx, key, fmt.Sprintf("%d:%s", layout.Version, newIncarnation()), 0).Err(); err != nil {
			return "", err
		}
		id, err = l.client.Get(ctx, key).Result()
	}
	if err != nil {
		return "", err
	}
	version, _, _ := strings.Cut(id, ":")
	n, err := strconv.Atoi(version)
	if err != nil {
		if err := l.setAside(ctx, key, fmt.Sprintf("%.100q is no layout and id of a data set", id), "=", id); err != nil {
			return "", err
		}
		return l.dataset(ctx)
	}
	if n > layout.Version {
		return "", fmt.Errorf("%w: %s is %s, and this version knows %d", recovery.ErrLayout, key, id, layout.Version)
	}
	return id, nil
}
