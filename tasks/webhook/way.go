package webhook

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/tasks/task"
)

// Kind is the name of this way of delivery in a topic's settings.
const Kind task.Kind = "webhook"

// Config configures a way. The zero value of every field is its default.
type Config struct {
	// Allow lists addresses that may be reached although they are not public: "loopback"
	// (127.0.0.0/8, ::1), "private" (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7), an
	// address, or a network such as "10.1.0.0/16". Known addresses of metadata services are reached
	// only if they are listed one by one, also within a network that is listed. Default: none.
	Allow []string
	// Secrets are the keys of signatures, by the name that topics use. Those of one name are in use
	// at the same time, so that they can be changed without a gap. Each is "whsec_" and the base64
	// of 24 to 64 bytes, as in the Standard Webhooks specification. Default: none.
	Secrets map[string][]string
	// Resolver resolves names of receivers. Default: net.DefaultResolver.
	Resolver *net.Resolver
	// RootCAs are the authorities that receivers' certificates must come from. Default:
	// those of the system.
	RootCAs *x509.CertPool
}

// A Way delivers tasks as HTTP requests. It is a task.Way and a task.Tally, and may be
// used from many goroutines at once.
type Way struct {
	policy      *policy
	connections *connections
	secrets     atomic.Pointer[secrets]
	tally       *task.Tallier[outcome]

	closed context.Context
	close  context.CancelFunc
}

// New makes a way of delivery. The error lists everything in the configuration that is
// wrong, and repeats no secret.
func New(cfg Config) (*Way, error) {
	var all *multierror.Error
	p, err := newPolicy(cfg.Allow)
	all = multierror.Append(all, err)
	s, err := newSecrets(cfg.Secrets)
	all = multierror.Append(all, err)
	if err := all.ErrorOrNil(); err != nil {
		return nil, err
	}
	w := &Way{policy: p, tally: task.NewTallier[outcome](outcomeNames)}
	w.closed, w.close = context.WithCancel(context.Background())
	w.connections = newConnections(w.closed, p, cfg.Resolver, cfg.RootCAs)
	w.secrets.Store(s)
	return w, nil
}

// Kind is "webhook".
func (w *Way) Kind() task.Kind { return Kind }

// Deliverer makes what delivers the tasks of one topic. Error: a *task.InvalidError that names
// everything in the settings that is wrong, and repeats no value.
func (w *Way) Deliverer(topic string, settings json.RawMessage) (task.Deliverer, error) {
	set, f := readSettings(settings)
	f = append(f, w.faults(&set)...)
	if len(f) > 0 {
		return nil, &task.InvalidError{Fields: f}
	}
	return newReceiver(w, topic, set), nil
}

const addressText = "must lead to a public address, or to one that webhook.allow lists"

// faults returns what is wrong with valid settings in this process.
func (w *Way) faults(set *settings) (f []task.FieldError) {
	if set.url != nil && w.policy.checkHost(set.url.Hostname()) != nil {
		f = append(f, task.FieldError{Field: "url", Problem: addressText})
	}
	if set.secret != "" && !w.secrets.Load().has(set.secret) {
		f = append(f, task.FieldError{Field: "secret", Problem: "must name a secret that this process has"})
	}
	return f
}

// SetSecrets replaces all secrets, for the attempts that begin from now on. A topic whose secret is
// missing is not delivered: its attempts fail. After adding a secret, tasks.Admin.Reconsider
// resumes the tasks that could not be delivered without it. The error lists everything that is
// wrong; then the secrets stay as they were.
func (w *Way) SetSecrets(byName map[string][]string) error {
	s, err := newSecrets(byName)
	if err == nil {
		w.secrets.Store(s)
	}
	return err
}

// Tally counts attempts by outcome, since the process began. It has all outcomes: see the
// constants.
func (w *Way) Tally() map[string]int64 { return w.tally.Tally() }

// Close closes the idle connections, and gives up those that are being made, which may go on for a
// while after the attempt that needed them. Call it once the scheduler is closed: later attempts
// fail.
func (w *Way) Close() {
	w.close()
	w.connections.at(time.Now()).CloseIdleConnections()
}
