package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks/object"
	"github.com/lapsehq/lapse/tasks/task"
)

// A target is what a task says of its own delivery:
//
//	url      where to post instead of the topic's URL, in the same form; it must lead to one of
//	         the topic's task_hosts, if it has some
//	timeout  instead of the topic's
//	headers  of the request, beside those of the task: an object of texts
//
// The topic has all the rest: whether the answer settles, and the secret of signatures. The address
// of the URL is checked like that of a topic's: also when it is dialled, whatever its name resolves
// to.
type target struct {
	url     *url.URL      // nil: the topic's
	timeout time.Duration // 0: the topic's
	headers map[string]string
}

const (
	maxTargetHeaders = 32
	maxTaskHosts     = 100
	taskHostsText    = `must be a list of up to 100 hosts, such as "shop.example", "*.shop.example" for all below it, "shop.example:8443" or "https://shop.example"`
	hostText         = "must have a host, port and scheme that the topic lets tasks choose (task_hosts)"
)

// readTarget reads the settings of a task, and lists everything that is wrong with them.
func readTarget(text json.RawMessage) (to target, faults []task.FieldError) {
	r := reader{seen: map[string]bool{}}
	r.each(text, func(name string, value json.RawMessage) {
		switch name {
		case "url":
			to.url = r.url(name, value)
		case "timeout":
			to.timeout = r.duration(name, value)
		case "headers":
			to.headers = r.headers(value)
		default:
			r.fault(object.Shown(name), "is not a field that a task may set; these are url, timeout and headers")
		}
	})
	return to, r.faults
}

// headers reads the headers of a target.
func (r *reader) headers(value json.RawMessage) map[string]string {
	all := map[string]string{}
	if json.Unmarshal(value, &all) != nil || !bytes.HasPrefix(value, []byte("{")) {
		r.fault("headers", "must be an object of texts")
		return nil
	}
	if len(all) > maxTargetHeaders {
		r.fault("headers", fmt.Sprintf("must be at most %d", maxTargetHeaders))
		return nil
	}
	var f task.Faults
	f.CheckHeaders(all)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if notFromTask(name) {
			f.Add("headers", "must not have one that belongs to the connection or to Lapse: "+name)
		}
	}
	r.faults = append(r.faults, f...)
	return all
}

// A taskHost is where tasks may choose to be sent: a host, and a scheme and a port that are empty
// where any will do.
type taskHost struct{ scheme, host, port string }

// hosts reads the hosts that tasks may choose.
func (r *reader) hosts(field string, value json.RawMessage) []taskHost {
	var texts []string
	if json.Unmarshal(value, &texts) != nil || !bytes.HasPrefix(value, []byte("[")) || len(texts) > maxTaskHosts {
		r.fault(field, taskHostsText)
		return nil
	}
	hosts := make([]taskHost, len(texts))
	for i, text := range texts {
		var ok bool
		if hosts[i], ok = taskHostOf(text); !ok {
			r.fault(field, taskHostsText)
			return nil
		}
	}
	return hosts
}

// taskHostOf reads [SCHEME://]HOST[:PORT]. A scheme without a port means the port of that scheme.
func taskHostOf(text string) (h taskHost, ok bool) {
	scheme, at, has := strings.Cut(text, "://")
	if !has {
		scheme, at = "", text
	}
	at = inBrackets(at)
	u, err := url.Parse(cmp.Or(scheme, "https") + "://" + at)
	if err != nil || u.Host != at || has && defaultPorts[scheme] == "" || strings.HasSuffix(at, ":") || u.Port() != "" && !isPort(u.Port()) {
		return h, false
	}
	name, below := strings.CutPrefix(u.Hostname(), "*.")
	h = taskHost{scheme, plainHost(u.Hostname()), cmp.Or(plainPort(u), defaultPorts[scheme])}
	return h, validHost(name) && !(below && isAddress(name)) && strings.HasPrefix(at, "[") == strings.Contains(name, ":")
}

// inBrackets puts the brackets of URLs around an IPv6 address that has none. ::1:8080 stays as it
// is: its end may be meant as a port.
func inBrackets(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > 0 && isAddress(host) && !isAddress(host[:i]) {
		return "[" + host + "]"
	}
	return host
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// defaultPorts are the ports of URLs that name none, by their schemes.
var defaultPorts = map[string]string{"http": "80", "https": "443"}

// plainHost is the form in which hosts are compared.
func plainHost(host string) string {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// plainPort is the port of a URL in the form in which ports are compared; "" if it names none.
func plainPort(u *url.URL) string { return strings.TrimLeft(u.Port(), "0") }

// includes reports whether a URL leads there.
func (h taskHost) includes(u *url.URL) bool {
	host, port := plainHost(u.Hostname()), cmp.Or(plainPort(u), defaultPorts[u.Scheme])
	below, all := strings.CutPrefix(h.host, "*")
	return (host == h.host || all && strings.HasSuffix(host, below)) &&
		(h.port == "" || h.port == port) && (h.scheme == "" || h.scheme == u.Scheme)
}

// letsChoose reports whether a task may choose a URL.
func (r *receiver) letsChoose(u *url.URL) bool {
	return r.taskHosts == nil || slices.ContainsFunc(r.taskHosts, func(h taskHost) bool { return h.includes(u) })
}

// CheckTarget implements task.Targeter. The receiver is scheme and host of the URL.
func (r *receiver) CheckTarget(settings json.RawMessage) (string, error) {
	to, f := readTarget(settings)
	switch {
	case to.url == nil:
	case !r.letsChoose(to.url):
		f = append(f, task.FieldError{Field: "url", Problem: hostText})
	case r.way.policy.checkHost(to.url.Hostname()) != nil:
		f = append(f, task.FieldError{Field: "url", Problem: addressText})
	}
	if len(f) > 0 {
		return "", &task.InvalidError{Fields: f}
	}
	return r.with(&to).origin, nil
}

// errTarget is the error of an attempt to a target that the topic does not accept any more.
var errTarget = errors.New("not sent: the task's own delivery is not valid (any more)")

// of returns the receiver of a delivery: that of the topic, or one of the task's own. It returns an
// error if the task has one that does not hold.
func (r *receiver) of(d *task.Delivery) (*receiver, error) {
	own := d.OwnSettings()
	if own == nil {
		return r, nil
	}
	to, f := readTarget(own)
	switch {
	case len(f) > 0:
		return nil, fmt.Errorf("%w: %w", errTarget, &task.InvalidError{Fields: f})
	case to.url != nil && !r.letsChoose(to.url):
		return nil, fmt.Errorf("%w: url %s", errTarget, hostText)
	}
	return r.with(&to), nil
}

// with returns the receiver with what a target has. Both use the connections of the way.
func (r *receiver) with(to *target) *receiver {
	own := *r
	own.extra = to.headers
	if to.timeout != 0 {
		own.timeout = to.timeout
	}
	if to.url != nil {
		own.origin, own.blank = originOf(to.url), blankTo(to.url)
	}
	return &own
}

// originOf returns scheme and host of a URL; the rest may hold a secret.
func originOf(u *url.URL) string {
	origin := url.URL{Scheme: u.Scheme, Host: u.Host}
	return origin.String()
}

// blankTo returns the part that all requests to a URL share.
func blankTo(u *url.URL) *http.Request {
	return &http.Request{Method: http.MethodPost, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}
