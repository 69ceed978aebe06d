package nats

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	natsgo "github.com/nats-io/nats.go"

	"github.com/lapsehq/lapse/adapters/internal/broker"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/object"
)

// Kind is the way's name in a topic's settings.
const Kind tasks.Kind = "nats"

// DefaultTimeout is how long an attempt may take unless Config says otherwise: 10 s.
const DefaultTimeout = broker.DefaultTimeout

// Config configures a way. The zero value of every field is its default.
type Config struct {
	// URLs are servers of one cluster: nats://host:port, tls://, ws:// or wss://.
	// Default: nats://127.0.0.1:4222.
	URLs []string
	// Options are those of the connection, such as credentials and TLS. The way itself sets how it
	// reconnects and how long its writes may take.
	Options []natsgo.Option
	// Timeout is how long an attempt waits for the stream at most, 1 s to 1 h; a
	// lease that ends sooner ends it sooner. Default: DefaultTimeout.
	Timeout time.Duration
}

// A Way delivers into streams. It implements tasks.Way and tasks.Tally, and may be used
// from many goroutines at once.
type Way struct {
	options natsgo.Options
	timeout time.Duration
	tally   *tasks.Tallier[outcome]
	link    broker.Link[*connection]
}

// New makes a way. It connects when the first task is delivered. The error lists
// everything in the configuration that is wrong, and repeats no URL.
func New(cfg Config) (*Way, error) {
	var all *multierror.Error
	w := &Way{options: natsgo.GetDefaultOptions(), tally: tasks.NewTallier[outcome](outcomeNames)}
	if len(cfg.URLs) == 0 {
		cfg.URLs = []string{natsgo.DefaultURL}
	}
	for i, u := range cfg.URLs {
		if !validURL(u) {
			all = multierror.Append(all, fmt.Errorf("urls[%d]: want nats://host:port, tls://, ws:// or wss://", i))
		}
	}
	var err error
	if w.timeout, err = broker.Timeout(cfg.Timeout, time.Second); err != nil {
		all = multierror.Append(all, err)
	}
	// How soon a server that went away is noticed, and looked for.
	w.options.PingInterval, w.options.MaxPingsOut = 5*time.Second, 2
	w.options.ReconnectWait = 500 * time.Millisecond
	w.options.AsyncErrorCB = func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
		slog.Debug("NATS", "error", err) // the attempts concerned fail with it
	}
	for i, option := range cfg.Options {
		if err := option(&w.options); err != nil {
			all = multierror.Append(all, fmt.Errorf("options[%d]: %w", i, err))
		}
	}
	w.options.Servers = slices.Clone(cfg.URLs)
	w.options.AllowReconnect, w.options.RetryOnFailedConnect, w.options.IgnoreAuthErrorAbort = true, true, true
	w.options.MaxReconnect = -1
	w.options.ReconnectBufSize = -1 // an attempt without a connection fails: the topic repeats it
	w.options.FlusherTimeout = w.timeout
	w.link.Connect, w.link.Ended = w.connect, func(c *connection) bool { return c.conn.IsClosed() }
	return w, all.ErrorOrNil()
}

func validURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Hostname() != "" && slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme)
}

// Kind implements tasks.Way.
func (w *Way) Kind() tasks.Kind { return Kind }

// Deliverer implements tasks.Way.
func (w *Way) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	o := object.Parse(settings)
	p := &publisher{way: w}
	p.subject = o.Text("subject", "", subjectProblem, validSubject)
	if !o.Has("subject") {
		o.Fault("subject", subjectProblem)
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

const subjectProblem = "must be the subject to publish on: 1 to 512 bytes, words with full stops between them, without spaces, * and >, and not of the server's own $ and _INBOX"

// validSubject reports whether a subject can be published on, and is not the server's own.
func validSubject(s string) bool {
	if !object.Name(s) || s[0] == '$' || strings.ContainsAny(s, "*>") {
		return false
	}
	words := strings.Split(s, ".")
	return words[0] != "_INBOX" && !slices.Contains(words, "")
}

// Close ends the connection. Call it once the scheduler is closed: attempts fail from then on.
func (w *Way) Close() { w.link.Close(func(c *connection) { c.conn.Close() }) }
