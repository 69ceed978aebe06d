package rabbitmq

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/go-multierror"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/adapters/internal/broker"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/object"
)

// Kind is the way's name in a topic's settings.
const Kind tasks.Kind = "rabbitmq"

// DefaultTimeout is how long an attempt may take unless Config says otherwise: 10 s.
const DefaultTimeout = broker.DefaultTimeout

// Config configures a way. The zero value of every field is its default.
type Config struct {
	// URLs are brokers of one cluster, tried in their order:
	// amqp://user:password@host:port/vhost, or amqps://. Default: amqp://127.0.0.1:5672.
	URLs []string
	// TLS is for amqps. Default: what the URL says.
	TLS *tls.Config
	// Timeout is how long an attempt waits for the broker at most, 1 s to 1 h; a
	// lease that ends sooner ends it sooner. Default: DefaultTimeout.
	Timeout time.Duration
}

// A Way delivers to exchanges, over one connection. It implements tasks.Way and
// tasks.Tally, and may be used from many goroutines at once.
type Way struct {
	urls    []string
	tls     *tls.Config
	timeout time.Duration
	tally   *tasks.Tallier[outcome]
	link    broker.Link[*connection]
	wg      sync.WaitGroup // of what opens, watches and closes channels
}

// New makes a way. It connects when the first task is delivered. The error lists
// everything in the configuration that is wrong, and repeats no URL.
func New(cfg Config) (*Way, error) {
	var all *multierror.Error
	w := &Way{urls: slices.Clone(cfg.URLs), tls: cfg.TLS, tally: tasks.NewTallier[outcome](outcomeNames)}
	if len(w.urls) == 0 {
		w.urls = []string{"amqp://127.0.0.1:5672"}
	}
	for i, u := range w.urls {
		if _, err := amqp.ParseURI(u); err != nil {
			all = multierror.Append(all, fmt.Errorf("urls[%d]: want amqp://user:password@host:port/vhost, or amqps://", i))
		}
	}
	var err error
	if w.timeout, err = broker.Timeout(cfg.Timeout, time.Second); err != nil {
		all = multierror.Append(all, err)
	}
	w.link.Connect, w.link.Pause = w.connect, redialAfter
	w.link.Ended = func(c *connection) bool { return c.conn.IsClosed() }
	return w, all.ErrorOrNil()
}

// Kind implements tasks.Way.
func (w *Way) Kind() tasks.Kind { return Kind }

const (
	exchangeProblem   = "must be the name of an exchange, up to 255 bytes without control characters; empty or left out for the default exchange"
	routingKeyProblem = "must be up to 255 bytes without control characters, and the name of a queue if there is no exchange"
)

// Deliverer implements tasks.Way.
func (w *Way) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	o := object.Parse(settings)
	p := &publisher{way: w}
	p.exchange = o.Text("exchange", "", exchangeProblem, short)
	p.key = o.Text("routing_key", "", routingKeyProblem, func(s string) bool {
		return short(s) && (s != "" || p.exchange != "")
	})
	if !o.Has("routing_key") && p.exchange == "" {
		o.Fault("routing_key", routingKeyProblem)
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// short reports whether a text can be one of AMQP's short strings, and is printable.
func short(s string) bool {
	return len(s) <= 255 && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError })
}

// Close ends the connection. Call it once the scheduler is closed: attempts fail from then on.
func (w *Way) Close() {
	w.link.Close(func(c *connection) { _ = c.conn.CloseDeadline(time.Now().Add(w.timeout)) })
	w.wg.Wait()
}
