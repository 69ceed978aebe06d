package pubsub

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/tasks/object"
	"github.com/lapsehq/lapse/tasks/task"
)

// Kind is the way's name.
const Kind task.Kind = "pubsub"

// Config configures a way.
type Config struct {
	// Prefix begins the channels that no topic has named; "lapse:" unless set. It
	// should be that of the ledger in Redis, if there is one: other channels that
	// begin with it are refused, since they may be the ledger's.
	Prefix string
}

// A Way delivers by PUBLISH on Redis channels. It implements task.Way and task.Tally.
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
	p := &publisher{way: w, message: payload}
	p.channel = w.channel(o, w.prefix+"channel:"+topic)
	p.taskChannels = o.Patterns("task_channels")
	if o.Text("format", "payload", "must be payload or envelope", func(s string) bool { return s == "payload" || s == "envelope" }) == "envelope" {
		p.message = envelope
	}
	db := o.Int("db", 0, 1_000_000, 0)
	if o.Text("compat", "", "must be keyevent", func(s string) bool { return s == "keyevent" }) != "" {
		p.channel, p.message, p.taskChannels = fmt.Sprintf("__keyevent@%d__:expired", db), key, []string{}
		for _, field := range []string{"channel", "format", "task_channels"} {
			if o.Has(field) {
				o.Fault(field, "must not be given with compat, which says what is published and where")
			}
		}
	} else if o.Has("db") && !o.Has("compat") {
		o.Fault("db", "must not be given without compat")
	}
	p.least = o.Int("min_receivers", 0, 1000, 0)
	if _, cluster := w.client.(*redis.ClusterClient); cluster && p.least > 0 {
		o.Fault("min_receivers", "must be 0 on Redis Cluster, which counts only the receivers of one master")
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// channel reads the name of a channel.
func (w *Way) channel(o *object.Object, def string) string {
	ours := w.prefix + "channel:"
	return o.Text("channel", def,
		"must be a name of 1 to 512 bytes, without spaces and control characters, begin with "+ours+" if it begins with "+w.prefix+
			", and not be one of Redis' own, which begin with __sentinel__: or __redis__:",
		func(s string) bool {
			// A payload on a channel of Sentinels could make them choose another master.
			redis := strings.HasPrefix(s, "__sentinel__:") || strings.HasPrefix(s, "__redis__:")
			return object.Name(s) && !redis && (!strings.HasPrefix(s, w.prefix) || strings.HasPrefix(s, ours))
		})
}

// CheckTarget implements task.Targeter. The receiver is the channel.
func (p *publisher) CheckTarget(settings json.RawMessage) (string, error) { return p.target(settings) }

// target returns the channel that a task has chosen.
func (p *publisher) target(settings json.RawMessage) (string, error) {
	o := object.Parse(settings)
	channel := p.way.channel(o, p.channel)
	if o.Has("channel") && !object.Matches(p.taskChannels, channel) {
		o.Fault("channel", "must be one that the topic lets tasks choose (task_channels), and none with compat")
	}
	return channel, o.Err()
}
