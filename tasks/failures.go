package tasks

import (
	"log/slog"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

const (
	tellFailuresEvery = time.Minute // of one topic
	failingTopics     = 100         // that have a line of their own; the others share one
)

// A failureLog says once a minute for each topic that attempts have failed or tasks have
// died. More topics than failingTopics share one line.
type failureLog struct {
	mu      sync.Mutex // guards what follows
	byTopic map[string]*failures
	others  failures // of topics that have no line of their own
}

// failures are those since the last line.
type failures struct {
	failed, died int
	last         string        // the last error
	quiet        time.Duration // until then nothing is said, on the monotonic clock
}

// of returns the failures that those of a topic count among.
func (l *failureLog) of(topic string) *failures {
	if f, ok := l.byTopic[topic]; ok {
		return f
	}
	if len(l.byTopic) >= failingTopics {
		return &l.others
	}
	if l.byTopic == nil {
		l.byTopic = make(map[string]*failures)
	}
	f := &failures{}
	l.byTopic[topic] = f
	return f
}

func (l *failureLog) failed(topic, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.of(topic)
	f.failed++
	f.last = reason
}

func (l *failureLog) died(topic string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(topic).died++
}

// tell writes the lines whose time has come.
func (l *failureLog) tell(log *slog.Logger, node string, now time.Duration) {
	l.mu.Lock()
	due := make(map[string]failures)
	for name, f := range l.byTopic {
		switch {
		case now < f.quiet:
		case f.failed+f.died == 0:
			delete(l.byTopic, name)
		default:
			due[name] = *f
			*f = failures{quiet: now + tellFailuresEvery}
		}
	}
	rest := failures{}
	if f := &l.others; f.failed+f.died > 0 && now >= f.quiet {
		rest, *f = *f, failures{quiet: now + tellFailuresEvery}
	}
	l.mu.Unlock()
	for name, f := range due {
		log.Warn("attempts have failed", "node", node, "topic", name, "failed", f.failed, "died", f.died, "last_error", task.Cut(f.last, task.MaxReason))
	}
	if rest.failed+rest.died > 0 {
		log.Warn("attempts of further topics have failed", "node", node, "failed", rest.failed, "died", rest.died, "last_error", task.Cut(rest.last, task.MaxReason))
	}
}
