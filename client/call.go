package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/goccy/go-json"
)

// A call is one request, with what is known about repeating it.
type call struct {
	method string
	path   string // escaped
	query  url.Values
	header http.Header
	body   []byte        // nil for none
	media  string        // of the body; empty: JSON
	extra  time.Duration // on top of the timeout
	effect effect
	also   int // a status besides 2xx that is a success
}

// effect is what a second request adds to the first.
type effect uint8

const (
	reads effect = iota // nothing ever happens
	same                // the same thing happens, once
	again               // the effect may happen a second time
)

// answer is a success.
type answer struct {
	status int
	header http.Header
	body   []byte
}

const (
	// wholeTopic is added for a call that may touch all tasks of a topic or a group.
	wholeTopic   = 2 * time.Minute
	firstPause   = 100 * time.Millisecond // before a repetition, where the server names none
	longestPause = 2 * time.Second
)

// do makes a call and decodes the answer into into, unless that is nil.
func (c *Client) do(ctx context.Context, q call, into any) (*answer, error) {
	a, err := c.repeat(ctx, &q, c.attempt)
	if err != nil || into == nil {
		return a, err
	}
	if err := json.Unmarshal(a.body, into); err != nil {
		return nil, fmt.Errorf("the answer to %s %s cannot be read: %w", q.method, q.path, err)
	}
	return a, nil
}

// repeat makes a call, and repeats it as long as that is safe and allowed.
func (c *Client) repeat(ctx context.Context, q *call, attempt func(context.Context, *call) (*answer, error)) (*answer, error) {
	open := false // an attempt may have been carried out
	for n := 0; ; n++ {
		a, err := attempt(ctx, q)
		if err == nil {
			return a, nil
		}
		nothing := errors.Is(err, ErrUnreachable) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOverloaded)
		unknown := errors.Is(err, ErrUnknown)
		open = open || unknown
		if open && (nothing || ctx.Err() != nil) && !unknown {
			err = fmt.Errorf("%w after an earlier attempt: %w", ErrUnknown, err)
		}
		if n >= c.retries || ctx.Err() != nil || insecure(err) || !nothing && (!unknown || q.effect == again) {
			return nil, err
		}
		pause, ok := c.pause(n, err)
		if !ok {
			return nil, err
		}
		if c.repeats != nil {
			c.repeats(ctx, Repetition{q.method, q.path, n + 1, pause, err})
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// pause is how long to wait before the next attempt: what the server asks for, or
// else longer with each attempt. A random part keeps callers from coming back all
// at once.
func (c *Client) pause(n int, err error) (time.Duration, bool) {
	if p := (*Problem)(nil); errors.As(err, &p) && p.RetryAfter > 0 {
		if p.RetryAfter > c.maxWait {
			return 0, false
		}
		return p.RetryAfter + rand.N(p.RetryAfter/4+1), true
	}
	pause := min(firstPause<<min(n, 10), longestPause, c.maxWait)
	return pause/2 + rand.N(pause/2+1), true
}

// attempt makes one request. Its error is a *Problem, or wraps ErrUnreachable or
// ErrUnknown, or the context's.
func (c *Client) attempt(ctx context.Context, q *call) (*answer, error) {
	within, cancel := context.WithTimeout(ctx, c.timeout+q.extra)
	defer cancel()
	r, err := c.request(within, q)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, q.broken(ctx, within, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, q.broken(ctx, within, err)
	}
	if (resp.StatusCode < 200 || resp.StatusCode > 299) && resp.StatusCode != q.also {
		return nil, problemOf(resp, text)
	}
	return &answer{resp.StatusCode, resp.Header, text}, nil
}

// request makes the request of one attempt.
func (c *Client) request(ctx context.Context, q *call) (*http.Request, error) {
	target := c.base + q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	var body io.Reader
	if q.body != nil {
		body = bytes.NewReader(q.body)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for name, values := range q.header {
		r.Header[name] = values
	}
	if q.body != nil {
		r.Header.Set("Content-Type", cmp.Or(q.media, "application/json"))
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", c.agent)
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return r, nil
}

// broken classifies a failed connection. The attempt was bounded by within, the whole call by ctx.
func (q *call) broken(ctx, within context.Context, err error) error {
	nothing := q.effect == reads || !sent(err)
	if verbose := (*url.Error)(nil); errors.As(err, &verbose) {
		err = verbose.Err // without method and URL
	}
	switch {
	case ctx.Err() != nil && nothing:
		return context.Cause(ctx)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case within.Err() != nil:
		err = errors.New("no answer in time")
	}
	if nothing {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// sent reports whether the request may have reached the server. It has not if no connection was
// made.
func sent(err error) bool {
	op := (*net.OpError)(nil)
	return !insecure(err) && !(errors.As(err, &op) && op.Op == "dial")
}

// insecure reports whether a connection ended before the first request because the other side
// failed the checks of TLS. Another attempt does not change that.
func insecure(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate) || errors.Is(err, http.ErrSchemeMismatch)
}
