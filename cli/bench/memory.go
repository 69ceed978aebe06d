package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
)

// MemoryFacts are what pending tasks cost.
type MemoryFacts struct {
	// BytesPerTask is of resident memory, after unused memory was given back.
	BytesPerTask float64  `json:"bytes_per_task"`
	ResidentMB   float64  `json:"resident_mb"` // of the whole process then
	IdleCPU      *float64 `json:"idle_cpu_percent,omitempty"`
	GCCPU        float64  `json:"gc_cpu_percent"` // of one core, while idle
	GCMillis     float64  `json:"gc_ms"`          // one full collection
}

// memory lets tasks wait far ahead in a scheduler of this process.
func memory(ctx context.Context, ledger Ledger, l Load) (r Result, err error) {
	s, err := ledger.start(ctx)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	b := &bout{s: s, l: l}
	empty := resident()
	began := time.Now()
	base := began.Add(24 * time.Hour).Truncate(time.Second)
	if err := b.fill(ctx, 0, l.Tasks, func(i int) time.Time { return base.Add(time.Duration(i) * time.Millisecond) }); err != nil {
		return r, err
	}
	filled := time.Since(began)
	st, err := s.Standing(ctx)
	if err != nil {
		return r, err
	}
	full := resident()
	facts := &MemoryFacts{BytesPerTask: float64(full-empty) / float64(l.Tasks), ResidentMB: float64(full) / (1 << 20)}
	collecting := time.Now()
	runtime.GC()
	facts.GCMillis = float64(time.Since(collecting).Microseconds()) / 1000
	if err := facts.idle(ctx, l.Duration); err != nil {
		return r, err
	}
	return Result{
		Workload: "memory", Tasks: l.Tasks, Batch: l.Batch, Payload: l.Payload,
		Seconds: filled.Seconds(), FilledPerSecond: float64(l.Tasks) / filled.Seconds(),
		Memory: facts, Faults: Faults{Lost: max(0, l.Tasks-st.Left)},
	}, nil
}

// idle records what the process uses while nothing is due.
func (f *MemoryFacts) idle(ctx context.Context, d time.Duration) error {
	gc, began := gcCPU(), time.Now()
	busy, known := cpu()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
	}
	took := time.Since(began)
	if now, ok := cpu(); ok && known {
		percent := 100 * float64(now-busy) / float64(took)
		f.IdleCPU = &percent
	}
	f.GCCPU = 100 * float64(gcCPU()-gc) / float64(took)
	return nil
}

// resident is the resident memory of this process in bytes after unused memory was given back: as
// /proc reports it, or without /proc, as the runtime does.
func resident() int64 {
	debug.FreeOSMemory()
	var size, pages int64
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if _, err := fmt.Sscan(string(text), &size, &pages); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	all := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(all)
	return int64(all[0].Value.Uint64() - all[1].Value.Uint64())
}

// cpu is the processor time of this process, in steps of 10 ms, from /proc.
func cpu() (time.Duration, bool) {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, false
	}
	// The name stands in parentheses and may hold any characters. utime and stime come 11 fields
	// after it, in hundredths of a second.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0, false
	}
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond, err1 == nil && err2 == nil
}

// gcCPU is the processor time of the collector.
func gcCPU() time.Duration {
	runtime.GC() // a cycle updates the figure
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return time.Duration(sample[0].Value.Float64() * float64(time.Second))
}
