package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

// operatorHeader says that a request is an operator's act. The requests of sessions are, too, and
// those of the command line, by its User-Agent.
const (
	operatorHeader = "Lapse-Operator"
	commandLine    = "lapse"
)

// record enters an act in the log of actions, and in the log of the server. err is what has become
// of it: one that has failed and changed nothing is left out, unless that is not certain.
func (s *Server) record(c *gin.Context, e tasks.AuditEntry, err error) {
	e.Unknown = errors.Is(err, tasks.ErrUnknown)
	if err != nil && e.Count == 0 && !e.Unknown {
		return
	}
	e.Partial = e.Partial || err != nil && e.Count > 0
	e.By, e.Door, e.From = tokenName(c), "http", c.RemoteIP()
	kept := s.scheduler.Record(e)
	e = e.Bounded()
	s.log.Info("act", "request_id", c.Writer.Header().Get(requestIDHeader), "token", e.By, "verb", e.Verb, "topic", e.Topic, "group", e.Group,
		"task", e.Task, "target", e.Target, "count", e.Count, "partial", e.Partial, "unknown", e.Unknown, "kept", kept)
}

// operators reports whether a request is an operator's act.
func operators(c *gin.Context) bool {
	return c.GetHeader(operatorHeader) != "" || c.GetHeader(csrfHeader) != "" || c.Request.UserAgent() == commandLine
}

// recordOne enters an act on one task, if it is an operator's: those of applications are too many.
func (s *Server) recordOne(c *gin.Context, verb string, t *tasks.Task, id string, err error) {
	if !operators(c) {
		return
	}
	e := tasks.AuditEntry{Verb: verb, Task: id, Topic: t.Topic, Group: t.Group}
	if err == nil {
		e.Count = 1
	}
	s.record(c, e, err)
}

// recordSettings enters a change of a topic's settings, unless nothing has changed.
func (s *Server) recordSettings(c *gin.Context, e tasks.AuditEntry, before, after int64, err error) {
	if err != nil || before != after {
		s.record(c, e, err)
	}
}

// maxAuditValue bounds a value in an entry, in bytes. Of a longer one only the name is there.
const maxAuditValue = 256

// auditText returns settings for the log of actions, without what may be a secret: of a delivery
// its kind, and the scheme and host of its address.
func auditText(settings []byte) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(settings, &fields) != nil {
		return ""
	}
	for name, value := range fields {
		if name == "delivery" {
			fields[name] = auditDelivery(value)
		} else if len(value) > maxAuditValue {
			fields[name] = json.RawMessage(`"..."`)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return ""
	}
	return string(text)
}

func auditDelivery(delivery []byte) json.RawMessage {
	var d struct {
		Kind string `json:"kind,omitempty"`
		URL  string `json:"url,omitempty"`
	}
	if json.Unmarshal(delivery, &d) != nil {
		return json.RawMessage("null")
	}
	u, err := url.Parse(d.URL)
	if d.URL = ""; err == nil && u.Host != "" {
		d.URL = u.Scheme + "://" + u.Host
	}
	text, err := json.Marshal(d)
	if err != nil || len(text) > maxAuditValue {
		return json.RawMessage("null")
	}
	return text
}

// settingsText returns the settings of a topic for the log of actions, as a request that sets them,
// and their revision. Both are empty if no node that answers knows the topic.
func (s *Server) settingsText(ctx context.Context, topic string) (settings string, revision int64) {
	t, err := s.scheduler.Topic(topic)
	if err != nil {
		t, _, err = s.scheduler.FleetTopic(ctx, topic)
	}
	if err != nil {
		return "", 0
	}
	if !t.ConcurrencySet {
		t.Settings.Concurrency = 0
	}
	set, err := objectOf(&t.Settings)
	if err != nil {
		return "", t.Revision
	}
	set["revision"] = t.Revision
	text, err := json.Marshal(set)
	if err != nil {
		return "", t.Revision
	}
	return auditText(text), t.Revision
}

// AuditEntry says who did what.
type AuditEntry struct {
	ID      string `json:"id"`
	At      string `json:"at" format:"date-time"`
	Verb    string `json:"verb" doc:"Such as pause, resume, set-topic, change-topic, delete-topic, purge, requeue, delete-dead, cancel-group, import, drain, give-up-spools; of many tasks or one the action, such as cancel or move."`
	By      string `json:"by" doc:"Name of the caller's token. Empty: without a token."`
	Door    string `json:"door" doc:"By which the act came: http."`
	From    string `json:"from,omitempty" doc:"Address of the caller."`
	Node    string `json:"node" doc:"The node that was asked."`
	Topic   string `json:"topic,omitempty" doc:"Its name, or a pattern."`
	Group   string `json:"group,omitempty"`
	Task    string `json:"task,omitempty" doc:"Of an operator's act on one task."`
	Target  string `json:"target,omitempty" doc:"Of an act on a node."`
	Detail  string `json:"detail,omitempty" doc:"JSON: the filter of an act on many tasks, or the settings that the request has named. Cut at 2,048 bytes. Of a delivery its kind, and the scheme and host of its address; \"...\" stands for a value of more than 256 bytes."`
	Before  string `json:"before,omitempty" doc:"JSON: what the settings of the topic were."`
	Count   int64  `json:"count" doc:"Tasks that were changed."`
	Partial bool   `json:"partial" doc:"Further calls of the act were to follow. The calls of one act are one entry."`
	Unknown bool   `json:"unknown,omitempty" doc:"The ledger did not answer in time, or has not recorded the act yet: whether it was done, or of how many tasks, is not certain. Left out if it is."`
}

// AuditPage is a page of the log of actions.
type AuditPage struct {
	Entries    []AuditEntry `json:"entries" nullable:"false" doc:"The latest first."`
	NextCursor string       `json:"next_cursor,omitempty" doc:"Of the next page. Left out at the end."`
	Partial    string       `json:"partial,omitempty" doc:"Why entries are missing: the ledger could not tell all that it keeps of that time. Left out if none are."`
}

type auditInput struct {
	From   string `query:"from" format:"date-time" doc:"RFC 3339. Default: a month ago."`
	To     string `query:"to" format:"date-time" doc:"RFC 3339, not included. Default: now."`
	Topic  string `query:"topic" maxLength:"128" doc:"Only acts on this topic."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Entries a page."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The next_cursor of the page before."`
}

// audit answers GET /v1/audit.
func (s *Server) audit(ctx context.Context, in *auditInput) (*reply[AuditPage], error) {
	q := tasks.AuditQuery{Topic: in.Topic, Limit: in.Limit, Cursor: in.Cursor}
	if err := instants([]bound{{"from", in.From, &q.From}, {"to", in.To, &q.To}}); err != nil {
		return nil, err
	}
	page, err := s.scheduler.Audit(ctx, q)
	if err != nil {
		return nil, err
	}
	wire := AuditPage{Entries: make([]AuditEntry, len(page.Entries)), NextCursor: page.Cursor}
	if page.Partial != nil {
		wire.Partial = unread(page.Partial)
	}
	for i := range page.Entries {
		e := &page.Entries[i]
		wire.Entries[i] = AuditEntry{e.ID, formatInstant(e.At), e.Verb, e.By, e.Door, e.From, e.Node, e.Topic, e.Group, e.Task, e.Target, e.Detail, e.Before, e.Count, e.Partial, e.Unknown}
	}
	return &reply[AuditPage]{wire}, nil
}
