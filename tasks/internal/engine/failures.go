package engine

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// TellFailuresEvery is how often a topic may have a line about its failures.
	TellFailuresEvery = time.Minute
	// FailingTopics is how many topics have a line of their own. The others share one.
	FailingTopics = 100
)

// A FailureLog says once a minute for each topic that attempts have failed or tasks have
// died. More topics than FailingTopics share one line.
type FailureLog struct {
	mu      sync.Mutex // guards what follows
	ByTopic map[string]*failures
	others  failures // of topics that have no line of their own
}

// failures are those since the last line.
type failures struct {
	failed, died int
	last         string        // the last error, or why the last task died
	quiet        time.Duration // until then nothing is said, on the monotonic clock
}

// of returns the failures that those of a topic count among.
func (l *FailureLog) of(topic string) *failures {
	if f, ok := l.ByTopic[topic]; ok {
		return f
	}
	if len(l.ByTopic) >= FailingTopics {
		return &l.others
	}
	if l.ByTopic == nil {
		l.ByTopic = make(map[string]*failures)
	}
	f := &failures{}
	l.ByTopic[topic] = f
	return f
}

// Failed counts an attempt that has failed.
func (l *FailureLog) Failed(topic, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.of(topic)
	f.failed++
	f.last = reason
}

// Died counts a task that has died. A task whose last attempt failed counts as such as well.
func (l *FailureLog) Died(topic, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.of(topic)
	f.died++
	f.last = reason
}

// Tell writes the lines whose time has come.
func (l *FailureLog) Tell(log *slog.Logger, node string, now time.Duration) {
	l.mu.Lock()
	due := make(map[string]failures)
	for name, f := range l.ByTopic {
		switch {
		case now < f.quiet:
		case f.failed+f.died == 0:
			delete(l.ByTopic, name)
		default:
			due[name] = *f
			*f = failures{quiet: now + TellFailuresEvery}
		}
	}
	rest := failures{}
	if f := &l.others; f.failed+f.died > 0 && now >= f.quiet {
		rest, *f = *f, failures{quiet: now + TellFailuresEvery}
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
func (f *failures) tell(log *slog.Logger, of string, where ...any) {
	text := "attempts%s have failed"
	if f.failed == 0 {
		text = "tasks%s have died"
	}
	log.Warn(fmt.Sprintf(text, of), append(where, "failed", f.failed, "died", f.died, "last_error", task.Cut(f.last, task.MaxReason))...)
}
