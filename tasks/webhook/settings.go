package webhook

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/tasks/object"
	"github.com/lapsehq/lapse/tasks/task"
)

// settings are a topic's delivery object:
//
//	url      where to post, http or https; required
//	timeout  how long an attempt may take, "100ms" to "10m", default "10s"; as everywhere on
//	         the wire, a number is in milliseconds
//	mode     "sync": the answer settles the delivery; "async": a good answer leaves it open,
//	         and its receipt settles it; default "sync"
//	secret   name of the secret that requests are signed with; without it they are not signed
//	task_hosts
//	         hosts that tasks may choose in a topic with task_delivery: each is a name, or "*."
//	         and a name for all below it, with a port and a scheme where only these will do;
//	         default: all that the way may reach
//
// There is no field for an Authorization header or the like: every caller that may read topics
// could read it. Receivers know their sender by the signature.
type settings struct {
	url     *url.URL // nil if it is wrong
	timeout time.Duration
	async   bool
	secret  string

	taskHosts []taskHost // nil: all
}

const (
	minTimeout     = 100 * time.Millisecond
	maxTimeout     = 10 * time.Minute
	defaultTimeout = 10 * time.Second
	timeoutText    = `must be a duration from 100 ms to 10 min, such as "10s", or a number of milliseconds`
)

// readSettings reads a delivery object and lists everything that is wrong with it.
func readSettings(text json.RawMessage) (settings, []task.FieldError) {
	set := settings{timeout: defaultTimeout}
	r := reader{seen: map[string]bool{}}
	r.each(text, func(name string, value json.RawMessage) {
		switch name {
		case "url":
			set.url = r.url(name, value)
		case "timeout":
			set.timeout = r.duration(name, value)
		case "mode":
			mode, ok := r.text(name, value)
			if set.async = mode == "async"; ok && !set.async && mode != "sync" {
				r.fault(name, "must be sync or async")
			}
		case "task_hosts":
			set.taskHosts = r.hosts(name, value)
		case "secret":
			if name, ok := r.text(name, value); ok {
				if set.secret = name; !validName(name) {
					set.secret = ""
					r.fault("secret", nameProblem)
				}
			}
		default:
			r.fault(object.Shown(name), "is not a known field")
		}
	})
	if !r.seen["url"] {
		r.fault("url", "must be given")
	}
	return set, r.faults
}

// A reader reads one JSON object strictly and collects what is wrong.
type reader struct {
	seen   map[string]bool
	faults []task.FieldError
}

func (r *reader) fault(field, problem string) {
	r.faults = append(r.faults, task.FieldError{Field: field, Problem: problem})
}

// each calls take for every member of an object. A repeated member is a fault: a reader of the
// settings might take the other one for the one in force.
func (r *reader) each(text json.RawMessage, take func(name string, value json.RawMessage)) {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return // the scheduler has checked that this is an object
	}
	for d.More() {
		token, err := d.Token()
		name, isText := token.(string)
		var value json.RawMessage
		if err != nil || !isText || d.Decode(&value) != nil {
			return
		}
		if r.seen[name] {
			r.fault(object.Shown(name), "must not be given twice")
			continue
		}
		r.seen[name] = true
		take(name, value)
	}
}

func (r *reader) text(field string, value json.RawMessage) (text string, ok bool) {
	if value[0] != '"' || json.Unmarshal(value, &text) != nil {
		r.fault(field, "must be text")
		return "", false
	}
	return text, true
}

func (r *reader) url(field string, value json.RawMessage) (u *url.URL) {
	if raw, ok := r.text(field, value); ok {
		var problem string
		if u, problem = parseURL(raw); problem != "" {
			r.fault(field, problem)
		}
	}
	return u
}

func (r *reader) duration(field string, value json.RawMessage) time.Duration {
	ms, err := strconv.ParseInt(string(value), 10, 32) // 10 min are far less
	d := time.Duration(ms) * time.Millisecond
	var text string
	if value[0] == '"' && json.Unmarshal(value, &text) == nil {
		d, err = time.ParseDuration(text)
	}
	if err != nil || d < minTimeout || d > maxTimeout {
		r.fault(field, timeoutText)
	}
	return d
}
