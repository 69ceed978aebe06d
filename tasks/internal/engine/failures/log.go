package failures

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// every is how often a topic may have a line about its failures.
	every = time.Minute
	// lines is how many topics have a line of their own. The others share one.
	lines = 100
)

// A Log says once a minute for each topic that attempts have failed or tasks have
// died. More topics than lines share one line.
type Log struct {
	mu      sync.Mutex // guards what follows
	byTopic map[string]*since
	others  since // of topics that have no line of their own
}

// A since is what has failed since the last line.
type since struct {
	failed, died int
	last         string        // the last error, or why the last task died
	quiet        time.Duration // until then nothing is said, on the monotonic clock
}

// of returns the failures that those of a topic count among.
func (l *Log) of(topic string) *since {
	if f, ok := l.byTopic[topic]; ok {
		return f
	}
	if len(l.byTopic) >= lines {
		return &l.others
	}
	if l.byTopic == nil {
		l.byTopic = make(map[string]*since)
	}
	f := &since{}
	l.byTopic[topic] = f
	return f
}

// Failed counts an attempt that has failed.
func (l *Log) Failed(topic, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.of(topic)
	f.failed++
	f.last = reason
}

// Died counts a task that has died. A task whose last attempt failed counts as such as well.
func (l *Log) Died(topic, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.of(topic)
	f.died++
	f.last = reason
}

// Tell writes the lines whose time has come.
func (l *Log) Tell(log *slog.Logger, node string, now time.Duration) {
	l.mu.Lock()
	due := make(map[string]since)
	for name, f := range l.byTopic {
		switch {
		case now < f.quiet:
		case f.failed+f.died == 0:
			delete(l.byTopic, name)
		default:
			due[name] = *f
			*f = since{quiet: now + every}
		}
	}
	rest := since{}
	if f := &l.others; f.failed+f.died > 0 && now >= f.quiet {
		rest, *f = *f, since{quiet: now + every}
	}
	l.mu.Unlock()
	for name, f := range due {
		f.tell(log, "", "node", node, "topic", name)
	}
	if rest.failed+rest.died > 0 {
		rest.tell(log, " of further topics", "node", node)
	}
}

// tell writes one line.
func (f *since) tell(log *slog.Logger, of string, where ...any) {
	text := "attempts%s have failed"
	if f.failed == 0 {
		text = "tasks%s have died"
	}
	log.Warn(fmt.Sprintf(text, of), append(where, "failed", f.failed, "died", f.died, "last_error", task.Cut(f.last, task.MaxReason))...)
}
