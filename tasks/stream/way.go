package stream

import (
	"encoding/json"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/tasks/object"
	"github.com/lapsehq/lapse/tasks/task"
)

// Kind is the way's name.
const Kind task.Kind = "stream"

// Bounds and default of max_len, in entries.
const (
	DefaultMaxLen = 1_000_000
	maxMaxLen     = 1_000_000_000_000
)

// Config configures a way.
type Config struct {
	// Prefix begins the keys of streams that no topic has named; "lapse:" unless
	// set. It should be that of the ledger in Redis, if there is one: other keys
	// that begin with it are refused as streams, since they may be the ledger's.
	Prefix string
}

// A Way delivers into Redis streams. It implements task.Way and task.Tally.
type Way struct {
	client redis.UniversalClient
	prefix string
	tally  *task.Tallier[outcome]
}

// New makes a way that delivers through a client. The caller closes the client.
func New(client redis.UniversalClient, cfg Config) *Way {
	if cfg.Prefix == "" {
		cfg.Prefix = "lapse:"
	}
	return &Way{client: client, prefix: cfg.Prefix, tally: task.NewTallier[outcome](outcomeNames)}
}

// Kind implements task.Way.
func (w *Way) Kind() task.Kind { return Kind }

// Deliverer implements task.Way.
func (w *Way) Deliverer(topic string, settings json.RawMessage) (task.Deliverer, error) {
	o := object.Parse(settings)
	a := &adder{way: w}
	a.stream = w.stream(o, w.prefix+"stream:"+topic)
	a.taskStreams = o.Patterns("task_streams")
	a.maxLen = o.Int("max_len", 0, maxMaxLen, DefaultMaxLen)
	if err := o.Err(); err != nil {
		return nil, err
	}
	return a, nil
}

// stream reads the key of a stream.
func (w *Way) stream(o *object.Object, def string) string {
	ours := w.prefix + "stream:"
	return o.Text("stream", def,
		"must be a key of 1 to 512 bytes, without spaces and control characters, and begin with "+ours+" if it begins with "+w.prefix,
		func(s string) bool {
			return object.Name(s) && (!strings.HasPrefix(s, w.prefix) || strings.HasPrefix(s, ours))
		})
}

// CheckTarget implements task.Targeter. The receiver is the key of the stream.
func (a *adder) CheckTarget(settings json.RawMessage) (string, error) { return a.target(settings) }

// target returns the stream that a task has chosen.
func (a *adder) target(settings json.RawMessage) (string, error) {
	o := object.Parse(settings)
	stream := a.way.stream(o, a.stream)
	if o.Has("stream") && !object.Matches(a.taskStreams, stream) {
		o.Fault("stream", "must be one that the topic lets tasks choose (task_streams)")
	}
	return stream, o.Err()
}
