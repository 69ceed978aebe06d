package httpapi

import (
	"context"
	"encoding/json"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
)

// operatorHeader says that a request is an operator's act. The requests of sessions are, too, and
// those of the command line, by its User-Agent.
const (
	operatorHeader = "Lapse-Operator"
	commandLine    = "lapse"
)

// record enters an act in the log of actions, and in the log of the server.
func (s *Server) record(c *gin.Context, e tasks.AuditEntry) {
	e.By, e.Door, e.From = tokenName(c), "http", c.RemoteIP()
	kept := s.scheduler.Record(e)
	s.log.Info("act", "request_id", c.Writer.Header().Get(requestIDHeader), "token", e.By, "verb", e.Verb, "topic", e.Topic, "group", e.Group,
		"task", e.Task, "target", e.Target, "count", e.Count, "partial", e.Partial, "detail", e.Detail, "kept", kept)
}

// recordOne enters an act on one task, if it is an operator's: those of applications are too many.
func (s *Server) recordOne(c *gin.Context, verb string, t *tasks.Task, id string) {
	if c.GetHeader(operatorHeader) == "" && c.GetHeader(csrfHeader) == "" && c.Request.UserAgent() != commandLine {
		return
	}
	e := tasks.AuditEntry{Verb: verb, Task: id, Count: 1}
	if t != nil {
		e.Topic, e.Group = t.Topic, t.Group
	}
	s.record(c, e)
}

// settingsText returns the settings of a topic for the log of actions: a request that sets them,
// and their revision. It is empty if the topic is not known.
func (s *Server) settingsText(topic string) string {
	t, err := s.scheduler.Topic(topic)
	if err != nil {
		return ""
	}
	if !t.ConcurrencySet {
		t.Settings.Concurrency = 0
	}
	set, err := objectOf(&t.Settings)
	if err != nil {
		return ""
	}
	set["revision"] = t.Revision
	text, err := json.Marshal(set)
	if err != nil {
		return ""
	}
	return string(text)
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
	Detail  string `json:"detail,omitempty" doc:"JSON: the filter of an act on many tasks, or the settings that the request has named. Cut at 2,048 bytes."`
	Before  string `json:"before,omitempty" doc:"JSON: what the settings of the topic were."`
	Count   int64  `json:"count" doc:"Tasks that were changed."`
	Partial bool   `json:"partial" doc:"Further calls of the act were to follow. The calls of one act are one entry."`
}

// AuditPage is a page of the log of actions.
type AuditPage struct {
	Entries    []AuditEntry `json:"entries" nullable:"false" doc:"The latest first."`
	NextCursor string       `json:"next_cursor,omitempty" doc:"Of the next page. Left out at the end."`
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
	for i := range page.Entries {
		e := &page.Entries[i]
		wire.Entries[i] = AuditEntry{e.ID, formatInstant(e.At), e.Verb, e.By, e.Door, e.From, e.Node, e.Topic, e.Group, e.Task, e.Target, e.Detail, e.Before, e.Count, e.Partial}
	}
	return &reply[AuditPage]{wire}, nil
}
