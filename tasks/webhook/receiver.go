package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A receiver delivers the tasks of one topic to its URL, or to those that the tasks have. It is a
// task.Targeter.
type receiver struct {
	way     *Way
	topic   string
	source  string // of the events, as CloudEvents has it
	timeout time.Duration
	async   bool
	secret  string
	origin  string        // of the URL; the rest may hold a secret
	blank   *http.Request // the part that all requests share

	taskHosts []taskHost        // that tasks may choose; nil: all
	extra     map[string]string // headers of a task's own target
}

func newReceiver(w *Way, topic string, set settings) *receiver {
	return &receiver{
		way: w, topic: topic, source: "/topics/" + topic,
		timeout: set.timeout, async: set.async, secret: set.secret, origin: originOf(set.url), blank: blankTo(set.url),
		taskHosts: set.taskHosts,
	}
}

// Receiver returns scheme and host of the URL: callers see it that may not see the settings.
func (r *receiver) Receiver() string { return r.origin }

// Deliver makes one attempt. It takes no longer than the topic's timeout, and ends with the lease.
func (r *receiver) Deliver(ctx context.Context, d *task.Delivery) error {
	to, err := r.of(d)
	o := refusedTarget
	if err == nil {
		o, err = to.attempt(ctx, d)
	}
	r.way.tally.Count(o)
	return err
}

func (r *receiver) attempt(lease context.Context, d *task.Delivery) (outcome, error) {
	now := time.Now()
	h := r.headers(d)
	if r.secret != "" && !r.sign(h, d.ID, now, d.Payload) {
		return unsigned, fmt.Errorf("not sent: the secret %s is not there", r.secret)
	}
	within, cancel := context.WithDeadline(lease, now.Add(r.timeout))
	defer cancel()
	p := progress{giveUp: now.Add(2 * r.timeout)}
	answer, err := r.way.connections.at(now).RoundTrip(r.request(context.WithValue(within, progressKey{}, &p), h, d.Payload))
	if err != nil {
		if within.Err() != nil && !errors.As(err, new(dialError)) {
			err = within.Err() // whatever broke because of the timeout
		}
		return r.failure(lease, err, stage(p.stage.Load()))
	}
	said := read(answer, cancel)
	o, err := judge(answer, said, time.Now())
	if o == ok && r.async {
		return o, task.ErrLater
	}
	return o, err
}

// request returns the blank request with the parts of this attempt. A transport that still reads
// the payload after the attempt does no harm: the payload belongs to the delivery.
func (r *receiver) request(ctx context.Context, h http.Header, payload []byte) *http.Request {
	req := r.blank.WithContext(ctx)
	req.Header = h
	req.ContentLength = int64(len(payload))
	req.Body, req.GetBody = http.NoBody, func() (io.ReadCloser, error) { return http.NoBody, nil }
	if len(payload) > 0 {
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(payload)), nil }
		req.Body, _ = req.GetBody()
	}
	return req
}

// failure returns the outcome of an attempt without an answer, and its result for the task.
func (r *receiver) failure(lease context.Context, err error, at stage) (outcome, error) {
	var connecting dialError
	switch {
	case errors.Is(lease.Err(), context.Canceled), r.way.closed.Err() != nil:
		if at != connected || errors.As(err, &connecting) {
			return stopped, fmt.Errorf("%w: not sent: the server stops", task.ErrNoReceiver)
		}
		return stopped, errors.New("given up: the server stops")
	case errors.As(err, &connecting):
		return connecting.outcome(), err
	case errors.Is(err, context.DeadlineExceeded):
		after := "after " + r.timeout.String()
		if lease.Err() != nil {
			after = "when the lease ran out"
		}
		return at.timeout(), fmt.Errorf("%s %s", at.text(), after)
	}
	return broken, err
}

// outcome returns the outcome of a failure to connect.
func (e dialError) outcome() outcome {
	if errors.Is(e, errRefused) {
		return refusedAddress
	}
	return e.stage.timeout()
}

// timeout returns the outcome when time runs out in a stage.
func (s stage) timeout() outcome {
	return [...]outcome{connected: timeout, resolving: dns, connecting: dial, securing: tlsFailed}[s]
}

func (s stage) text() string {
	return [...]string{
		connected: "no answer", resolving: "the host's name was not resolved", connecting: "no connection", securing: "no TLS",
	}[s]
}
