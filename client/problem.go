package client

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-json"
)

// Returned, wrapped, when the server refuses a call. errors.As with a *Problem has the details.
var (
	// ErrInvalid: a field is wrong, or the text is not JSON. Problem.Fields names them.
	ErrInvalid = errors.New("the request is wrong")
	// ErrUnauthorized: the token is missing or unknown, or lacks the right to do this.
	ErrUnauthorized = errors.New("not allowed")
	// ErrNotFound: the task is unknown or finished.
	ErrNotFound = errors.New("unknown or finished")
	// ErrNoTopic: the topic has no settings.
	ErrNoTopic = errors.New("the topic has no settings")
	// ErrNoNode: no node of this name shares the server's ledger.
	ErrNoNode = errors.New("there is no such node")
	// ErrNoAct: the log of actions has no act with this id.
	ErrNoAct = errors.New("there is no such act")
	// ErrNotUndone: the act is not taken back. Problem.Detail says why.
	ErrNotUndone = errors.New("the act is not taken back")
	// ErrNoSuccessor: no other node can take over what the node holds.
	ErrNoSuccessor = errors.New("no other node can take over")
	// ErrNoBackup: the server can make no backup now, or none at all.
	ErrNoBackup = errors.New("no backup was made")
	// ErrExists: the id is taken by a task with other content.
	ErrExists = errors.New("the id is taken")
	// ErrDelivering: the task is being delivered, and can be neither cancelled nor changed.
	ErrDelivering = errors.New("the task is being delivered")
	// ErrDead: the task is dead. Requeue it or delete it.
	ErrDead = errors.New("the task is dead")
	// ErrNotDead: a task that is to be requeued or deleted is not among the dead.
	ErrNotDead = errors.New("the task is not dead")
	// ErrHandled: the topic's tasks are not pulled.
	ErrHandled = errors.New("the topic is not pulled")
	// ErrInUse: the topic has tasks, and can be neither deleted nor left without its delivery.
	ErrInUse = errors.New("the topic has tasks")
	// ErrStale: the delivery of a receipt is over.
	ErrStale = errors.New("the receipt is stale")
	// ErrReceipt: the text is no receipt of this server.
	ErrReceipt = errors.New("not a receipt")
	// ErrRevision: the settings of the topic, or the task, have been changed by another caller.
	ErrRevision = errors.New("the revision has changed")
	// ErrTooLarge: a body, payload or header is larger than the server accepts.
	ErrTooLarge = errors.New("too large")
	// ErrOverloaded: a limit of the server is reached. Nothing has happened.
	ErrOverloaded = errors.New("the server is overloaded")
	// ErrUnavailable: nothing has happened, since the server accepts no writes, starts, replays,
	// drains or shuts down, the node that has the task cannot be reached, or too many requests
	// change it.
	ErrUnavailable = errors.New("the server is unavailable")
)

// Returned, wrapped, when a call got no valid answer.
var (
	// ErrUnknown: the request may have been carried out. Problem.ID and IDs, or the ID
	// of the Task that comes with the error, name the ids with which repeating it is
	// safe.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrUnreachable: no connection to the server was made, or nothing could be read from it.
	// Nothing has happened.
	ErrUnreachable = errors.New("the server cannot be reached")
)

// Passing reports whether a call that has failed so may succeed when it is repeated later:
// ErrUnavailable, ErrOverloaded, ErrUnreachable, ErrUnknown.
func Passing(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrOverloaded) || errors.Is(err, ErrUnreachable) || errors.Is(err, ErrUnknown)
}

// sentinels maps the last part of a problem's type to its error.
var sentinels = map[string]error{
	"malformed": ErrInvalid, "invalid": ErrInvalid, "unsupported_media_type": ErrInvalid,
	"not_found": ErrNotFound, "topic_not_found": ErrNoTopic, "node_not_found": ErrNoNode, "act_not_found": ErrNoAct, "not_undone": ErrNotUndone, "nobody_to_take_over": ErrNoSuccessor, "no_backup": ErrNoBackup,
	"id_taken": ErrExists, "delivering": ErrDelivering, "dead": ErrDead, "not_dead": ErrNotDead, "handled": ErrHandled, "topic_in_use": ErrInUse, "delivery_dropped": ErrInUse,
	"stale_receipt": ErrStale, "bad_receipt": ErrReceipt, "precondition_failed": ErrRevision,
	"too_large": ErrTooLarge, "overloaded": ErrOverloaded, "quota": ErrOverloaded, "outcome_unknown": ErrUnknown,
	"ledger_unavailable": ErrUnavailable, "replaying": ErrUnavailable, "shutting_down": ErrUnavailable, "starting": ErrUnavailable,
	"draining": ErrUnavailable, "node_unavailable": ErrUnavailable, "busy": ErrUnavailable,
}

// Error returns the title, and each field with its fault, or the detail as far as it says more.
func (p *Problem) Error() string {
	if len(p.Fields) > 0 {
		faults := make([]string, len(p.Fields))
		for i, f := range p.Fields {
			faults[i] = f.Field + " " + f.Problem
		}
		return p.Title + ": " + strings.Join(faults, "; ")
	}
	if n := len(p.Title); len(p.Detail) > n && strings.EqualFold(p.Detail[:n], p.Title) {
		// "The id is taken" becomes "The id is taken by a task with other content".
		return p.Title + p.Detail[n:]
	}
	title := strings.Fields(strings.ToLower(p.Title))
	for _, word := range strings.Fields(strings.ToLower(p.Detail)) {
		if !slices.Contains(title, word) {
			return p.Title + ": " + p.Detail
		}
	}
	return p.Title
}

// Is matches the sentinel of this kind of problem.
func (p *Problem) Is(target error) bool {
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return target == ErrUnauthorized
	}
	name := p.Type[strings.LastIndexByte(p.Type, '/')+1:]
	if sentinel, ok := sentinels[name]; ok {
		return target == sentinel
	}
	switch {
	case p.Status == http.StatusTooManyRequests:
		return target == ErrOverloaded
	case p.Status >= 500:
		// 500, and the 502, 503 and 504 of a proxy: some answer 503 also when the connection
		// broke behind a request that they have passed on.
		return target == ErrUnknown
	}
	return false
}

// problemOf reads an answer that is not a success.
func problemOf(resp *http.Response, body []byte) *Problem {
	p := &Problem{}
	if json.Unmarshal(body, p) != nil || p.Type == "" {
		p = &Problem{Type: "about:blank", Title: http.StatusText(resp.StatusCode)}
		if p.Title == "" {
			p.Title = "Unexpected answer"
		}
		p.Title = fmt.Sprintf("%s (status %d)", p.Title, resp.StatusCode)
		switch location := resp.Header.Get("Location"); {
		case location != "":
			p.Detail = "redirected to " + location
		case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain"), len(body) > 0 && body[0] != '<' && len(body) < 200:
			line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
			p.Detail = strings.ToValidUTF8(line[:min(len(line), 200)], "")
		}
	}
	p.Status = resp.StatusCode
	p.RequestID = resp.Header.Get("X-Request-Id")
	p.RetryAfter = retryAfter(resp.Header.Get("Retry-After"))
	return p
}

// retryAfter reads the header, a number of seconds or a date.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil && seconds >= 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
