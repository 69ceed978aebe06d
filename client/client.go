package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options configure a client. Only URL is required.
type Options struct {
	// URL of the server, such as "http://127.0.0.1:7480". It may have a path, for a
	// proxy that serves the API below one; no query, no user.
	URL string
	// Token is sent as a bearer token with every request. Empty: none.
	Token string
	// TLS settings of https connections. Default: the system's certificates. Not
	// together with HTTPClient.
	TLS *tls.Config
	// HTTPClient makes the requests. Default: one of the client's own, which keeps up to
	// 64 idle connections. Its Timeout should be zero: it would cut long reserves short.
	// Redirects are followed only if its CheckRedirect says so: a POST would become a
	// GET, and seem to succeed.
	HTTPClient *http.Client
	// Timeout bounds each attempt of a call, 10 s by default. Reserve adds its wait to it, and
	// calls that may touch all tasks of a topic or a group add two minutes. A call as a whole is
	// bounded by its context only.
	Timeout time.Duration
	// Retries is how often a call is repeated when that is safe, 3 by default. A
	// negative number means never; then no ids are made either.
	Retries int
	// MaxWait is the longest pause before a repetition, 10 s by default. A server that
	// asks for a longer one gets none: its answer is returned.
	MaxWait time.Duration
	// OnRepeat is told of each attempt of a call that has failed and is followed by another one,
	// before the pause. It must not block.
	OnRepeat func(context.Context, Repetition)
	// UserAgent names the caller to the server. Default: "lapse-client".
	UserAgent string
}

// A Repetition says why and when a call is repeated.
type Repetition struct {
	Method, Path string
	Failed       int // attempts that have failed so far
	Pause        time.Duration
	Err          error // of the last one
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base    string // without a slash at the end
	http    *http.Client
	token   string
	agent   string
	timeout time.Duration
	retries int
	maxWait time.Duration
	repeats func(context.Context, Repetition) // may be nil
}

// New makes a client. It does not connect. The error names all options that are
// wrong.
func New(o Options) (*Client, error) {
	c := &Client{token: o.Token, agent: o.UserAgent,
		timeout: o.Timeout, retries: o.Retries, maxWait: o.MaxWait, repeats: o.OnRepeat}
	var faults []error
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		faults = append(faults, errors.New("option URL must be http://host:port or https://host:port"))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		faults = append(faults, errors.New("option URL must have neither a user nor a query; a token is an option of its own"))
	default:
		c.base = strings.TrimRight(u.String(), "/")
	}
	if strings.ContainsFunc(o.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		faults = append(faults, errors.New("option Token must be printable ASCII without spaces"))
	}
	if o.TLS != nil && o.HTTPClient != nil {
		faults = append(faults, errors.New("option TLS must not be given together with HTTPClient"))
	}
	if o.Timeout < 0 {
		faults = append(faults, errors.New("option Timeout must not be negative"))
	}
	if o.MaxWait < 0 {
		faults = append(faults, errors.New("option MaxWait must not be negative"))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if c.timeout == 0 {
		c.timeout = 10 * time.Second
	}
	if c.retries == 0 {
		c.retries = 3
	}
	if c.maxWait == 0 {
		c.maxWait = 10 * time.Second
	}
	if c.agent == "" {
		c.agent = "lapse-client"
	}
	c.http = httpClient(o)
	return c, nil
}

func httpClient(o Options) *http.Client {
	var own http.Client
	if o.HTTPClient != nil {
		own = *o.HTTPClient
	} else {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 64
		transport.TLSClientConfig = o.TLS
		own.Transport = transport
	}
	if own.CheckRedirect == nil {
		own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	return &own
}

// Close ends the connections that are idle. Calls in progress go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }
