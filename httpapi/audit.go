package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/url"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
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
		"task", e.Task, "target", e.Target, "count", e.Count, "partial", e.Partial, "unknown", e.Unknown, "undoes", e.Undoes, "kept", kept)
}

// operators reports whether a request is an operator's act.
func operators(c *gin.Context) bool {
	return c.GetHeader(operatorHeader) != "" || c.GetHeader(csrfHeader) != "" || c.Request.UserAgent() == commandLine
}

// onTask does one thing with one task. If that is an operator's act, or undoes one, it is recorded,
// with what the task was before: acts of applications are too many.
func (s *Server) onTask(ctx context.Context, c *gin.Context, e tasks.AuditEntry, change func(context.Context, string) (tasks.Task, error)) (tasks.Task, error) {
	if !operators(c) && e.Undoes == "" {
		return change(ctx, e.Task)
	}
	was, _ := s.scheduler.Get(ctx, e.Task) // or else what it was is not known
	is, err := change(ctx, e.Task)
	if is.ID == "" {
		is = was
	}
	e.Topic, e.Group = is.Topic, is.Group
	if err == nil {
		e.Count = 1
		cancelled := e.Verb == "cancel"
		switch {
		case was.ID == "":
		case !cancelled && is.Revision == was.Revision && is.Created.Equal(was.Created):
			return is, nil // nothing has changed
		case cancelled || is.Revision == was.Revision+1 && is.Created.Equal(was.Created):
			e.Before, e.ETag = textOfTask(&was), tagOf(&is)
		}
	}
	s.record(c, e, err)
	return is, err
}

// moveText returns what a move changes, for the log of actions.
func moveText(m *tasks.Move) string {
	fields := map[string]json.RawMessage{}
	if m.Delay != nil {
		fields["delay"] = json.RawMessage(jsonText(duration(*m.Delay)))
	} else if !m.Due.IsZero() {
		fields["due_at"] = json.RawMessage(jsonText(formatInstant(m.Due)))
	}
	if m.Payload != nil {
		fields["payload"] = json.RawMessage(withheld)
	}
	if m.Target != nil {
		fields["delivery"] = json.RawMessage(withheld)
	}
	return jsonText(fields)
}

// changeSettings changes settings of a topic, and records what has changed.
func (s *Server) changeSettings(ctx context.Context, c *gin.Context, e tasks.AuditEntry, revision int64, change func(*tasks.TopicSettings) error) (task.Topic, error) {
	before := s.knownTopic(ctx, e.Topic)
	t, err := s.scheduler.ChangeTopic(ctx, e.Topic, revision, change)
	s.recordSettings(c, e, before, &t, err)
	return t, err
}

// recordSettings enters a change of a topic's settings, unless nothing has changed. before is nil
// if it is not known.
func (s *Server) recordSettings(c *gin.Context, e tasks.AuditEntry, before, after *task.Topic, err error) {
	if err == nil && before != nil {
		was, is := changesOf(settingsOf(before), settingsOf(after))
		pauses := e.Verb == "pause" || e.Verb == "resume"
		if before.Revision == after.Revision || pauses && len(was) == 0 {
			return
		}
		if e.Before = auditText(was); !pauses {
			e.Detail = auditText(is)
		}
		if after.Revision == before.Revision+1 { // no other change came between
			e.ETag = tagOfTopic(after)
		}
	}
	s.record(c, e, err)
}

// changesOf returns the fields that are not the same in two objects: null where there is none.
func changesOf(before, after map[string]json.RawMessage) (was, is map[string]json.RawMessage) {
	was, is = map[string]json.RawMessage{}, map[string]json.RawMessage{}
	null := json.RawMessage("null")
	for name, value := range before {
		if other, has := after[name]; !has {
			was[name], is[name] = value, null
		} else if !bytes.Equal(value, other) {
			was[name], is[name] = value, other
		}
	}
	for name, value := range after {
		if _, has := before[name]; !has {
			was[name], is[name] = null, value
		}
	}
	return was, is
}

// maxAuditValue bounds a value in an entry, in bytes. Of a longer one only the name is there.
const maxAuditValue = 256

// auditText returns settings for the log of actions, without what may be a secret: of a delivery
// its kind, and the scheme and host of its address.
func auditText(settings map[string]json.RawMessage) string {
	fields := make(map[string]json.RawMessage, len(settings))
	for name, value := range settings {
		fields[name] = value
		if name == "delivery" {
			fields[name] = auditDelivery(value)
		} else if len(value) > maxAuditValue {
			fields[name] = json.RawMessage(withheld)
		}
	}
	return jsonText(fields)
}

// withheld stands for a value that the log does not have.
const withheld = `"..."`

// jsonText returns a value as JSON; "" if it has none.
func jsonText(v any) string {
	text, err := json.Marshal(v)
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

// knownTopic returns a topic, as this node or another one knows it: nil if none that answers does.
func (s *Server) knownTopic(ctx context.Context, topic string) *task.Topic {
	t, err := s.scheduler.Topic(topic)
	if err != nil {
		t, _, err = s.scheduler.FleetTopic(ctx, topic)
	}
	if err != nil {
		return nil
	}
	return &t
}

// settingsOf returns the settings of a topic in the form of a request.
func settingsOf(t *task.Topic) map[string]json.RawMessage {
	set := t.Settings
	if !t.ConcurrencySet {
		set.Concurrency = 0
	}
	object, err := objectOf(&set)
	if err != nil {
		return nil
	}
	fields := make(map[string]json.RawMessage, len(object))
	for name, value := range object {
		fields[name], _ = value.(json.RawMessage)
	}
	return fields
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
	Detail  string `json:"detail,omitempty" doc:"JSON: the filter of an act on many tasks, or the settings that have changed. Cut at 2,048 bytes. Of a delivery its kind, and the scheme and host of its address; \"...\" stands for a value of more than 256 bytes."`
	Before  string `json:"before,omitempty" doc:"JSON: what was changed, as it was: settings of the topic, null for a default; or due_at, state and attempt of the task."`
	ETag    string `json:"etag,omitempty" doc:"The ETag of the settings, or of the task, after the act; of a task that it has cancelled, the last one. Left out if it is not known."`
	Undo    string `json:"undo,omitempty" doc:"The verb by which POST /v1/audit/{act}/undo takes the act back, unless it is refused because the topic or the task was changed since. Left out: it is not taken back."`
	Undoes  string `json:"undoes,omitempty" doc:"The id of the entry that this act has taken back."`
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
		undo, _ := undoOf(e)
		wire.Entries[i] = AuditEntry{
			e.ID, formatInstant(e.At), e.Verb, e.By, e.Door, e.From, e.Node, e.Topic, e.Group, e.Task, e.Target, e.Detail, e.Before,
			e.ETag, undo, e.Undoes, e.Count, e.Partial, e.Unknown,
		}
	}
	return &reply[AuditPage]{wire}, nil
}
