package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humagin"
	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/internal/choice"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// Problem is the body of every answer that is not a success, RFC 9457. Its Type is a path on this
// server that explains it, and is what a program should compare. Title and Detail are for people
// and may change.
type Problem struct {
	Type     string       `json:"type" format:"uri-reference" example:"/problems/invalid" doc:"Names the kind of problem; the path of its explanation."`
	Title    string       `json:"title" doc:"The kind of problem in words. Always the same for one type."`
	Status   int          `json:"status" doc:"The HTTP status of the answer."`
	Detail   string       `json:"detail,omitempty" doc:"What happened this time. It never repeats a value of the request."`
	Errors   []FieldFault `json:"errors,omitempty" nullable:"false" doc:"Each field that is wrong."`
	ID       string       `json:"id,omitempty" doc:"The id of the task, where repeating the request with it is safe."`
	IDs      []string     `json:"ids,omitempty" nullable:"false" doc:"The same, for each task of a batch."`
	Recorded *bool        `json:"recorded,omitempty" doc:"False: the server has done this, but the ledger has not recorded it yet. The end of the process would undo it. Repeat the request to learn whether it is recorded."`
	Done     int          `json:"done,omitempty" doc:"Tasks done before the problem, where a request is done in pieces. Repeating it does the rest."`

	RequestID string `json:"request_id,omitempty" doc:"The X-Request-Id of the answer, which the log uses too."`

	retryAfter time.Duration
	cause      error // of a defect, for the log
}

// FieldFault says what is wrong with one field.
type FieldFault struct {
	Field   string `json:"field" example:"retry.max_attempts" doc:"Path of the field, parameter or header."`
	Problem string `json:"problem" example:"must be an integer from 1 to 1000" doc:"What it must be."`
}

// Error makes a problem an error that huma answers unchanged.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Title + ": " + p.Detail
}

// GetStatus tells huma the status of the answer.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType tells huma the media type of the answer.
func (p *Problem) ContentType(string) string { return problemMedia }

// GetHeaders tells huma the headers of the answer.
func (p *Problem) GetHeaders() http.Header {
	if p.retryAfter == 0 {
		return nil
	}
	seconds := int64((p.retryAfter + time.Second - 1) / time.Second)
	return http.Header{"Retry-After": {strconv.FormatInt(seconds, 10)}}
}

// A kind is an entry of the catalogue of problems.
type kind struct {
	name   string // last part of the type
	status int
	title  string
	means  string        // when it is answered
	remedy string        // what the caller can do
	retry  time.Duration // Retry-After, where waiting helps
}

// with makes a problem of this kind.
func (k *kind) with(detail string) *Problem {
	return &Problem{Type: problemBase + k.name, Title: k.title, Status: k.status, Detail: detail, retryAfter: k.retry}
}

const (
	problemBase  = "/problems/"
	problemMedia = "application/problem+json"
)

// The catalogue. docs/problems.md is generated from it.
var (
	malformed = &kind{"malformed", http.StatusBadRequest, "The body or the query cannot be parsed",
		"The body is empty where one is needed, is not JSON, is not UTF-8, is nested deeper than 256 levels, or goes on after its end. Or a parameter of the query has no value, a semicolon, or a percent sign that two hexadecimal digits do not follow.",
		"Send one JSON value, encoded in UTF-8: the detail says at which byte the text stops being one. Percent-encode the values of parameters: errors names those that cannot be read.", 0}
	unauthorized = &kind{"unauthorized", http.StatusUnauthorized, "A token is needed",
		"The server has tokens. The request brought none, an unknown one, or one in a form that this route does not accept.",
		"Send Authorization: Bearer with a token of this server; a browser may send it as a password, for reading.", 0}
	forbidden = &kind{"forbidden", http.StatusForbidden, "The token does not open this",
		"The token is known, but has none of the scopes that the route needs; or it is limited to other topics than that of the request, or of the task.",
		"Use a token with the scope that the detail names, or with the topic; or have it added to this one.", 0}
	unconfirmed = &kind{"csrf", http.StatusForbidden, "The session does not confirm this",
		"The request is authenticated by the cookie of a session, changes something, and does not bring the session's csrf in the header X-Lapse-CSRF. A page of another site can make a browser send the cookie, but cannot read that text.",
		"Read csrf of GET /v1/session again, and send it. A program sends Authorization: Bearer instead of a cookie.", 0}
	crossOrigin = &kind{"cross_origin", http.StatusForbidden, "Refused from another site",
		"A browser made this request for a page of another origin, or under a name that is not this server's.",
		"Call the API from a program, or open its pages at 127.0.0.1 or localhost. A proxy in front of it should set the Host header to the server's address. A server without tokens and TLS takes names in the public DNS only if --allowed-host has them.", 0}
	notFound = &kind{"not_found", http.StatusNotFound, "Unknown or finished",
		"There is no task with this id, or it is finished. Which of the two is known only for a while.",
		"Check the id. A task that was delivered, cancelled or skipped is gone.", 0}
	noSuchRoute = &kind{"no_such_route", http.StatusNotFound, "No such route",
		"No route has this path.",
		"Compare it with the routes at /docs.", 0}
	noTopic = &kind{"topic_not_found", http.StatusNotFound, "The topic has no settings",
		"The topic has no settings to show or to delete.",
		"Nothing is needed: tasks of such a topic are delivered with the defaults.", 0}
	noNode = &kind{"node_not_found", http.StatusNotFound, "There is no such node",
		"No node of this name shares the server's ledger.",
		"Compare it with the names in /v1/nodes.", 0}
	noAct = &kind{"act_not_found", http.StatusNotFound, "There is no such act",
		"The log of actions has no entry with this id, or has none yet: another node has it a second or so after the act.",
		"Compare it with the ids in /v1/audit.", 0}
	notUndone = &kind{"not_undone", http.StatusConflict, "The act is not taken back",
		"The log does not have what it takes to lead back to what was there before. The detail says why.",
		"Do the opposite by hand, if that is right: the entry says what was changed.", 0}
	wrongMethod = &kind{"method_not_allowed", http.StatusMethodNotAllowed, "Another method is needed",
		"The route exists, but not with this method.",
		"Use one of the methods in the Allow header.", 0}
	notAcceptable = &kind{"not_acceptable", http.StatusNotAcceptable, "Only JSON can be answered",
		"The Accept header admits neither application/json nor application/problem+json.",
		"Leave Accept out, or admit application/json.", 0}
	idTaken = &kind{"id_taken", http.StatusConflict, "The id is taken",
		"A task with this id exists and was requested with other content. (The same content is answered 200.)",
		"Choose another id, or replace the task with PUT.", 0}
	delivering = &kind{"delivering", http.StatusConflict, "The task is being delivered",
		"The task was handed to its receiver, so that it can be neither cancelled nor changed.",
		"Wait until the delivery is settled, then look again.", 0}
	dead = &kind{"dead", http.StatusConflict, "The task is dead",
		"Its attempts are exhausted, or its receiver has buried it.",
		"Requeue it or delete it under /v1/topics/{topic}/dead.", 0}
	notDead = &kind{"not_dead", http.StatusConflict, "The task is not dead",
		"A task that is to be requeued or deleted is not among the dead: it waits, is being delivered, is finished, or is unknown.",
		"Nothing is needed if it was requeued before. Otherwise look at the task.", 0}
	handled = &kind{"handled", http.StatusConflict, "The topic is not pulled",
		"The topic's tasks go to a handler of the program that embeds this server, or by another way of delivery, so they cannot be reserved.",
		"Reserve from another topic, or set the topic's delivery to pull.", 0}
	inUse = &kind{"topic_in_use", http.StatusConflict, "The topic has tasks",
		"The topic has tasks that are pending, ready or being delivered. Without its settings they would be delivered by the defaults.",
		"Purge the topic first, or delete it with ?force=true, which makes them dead.", 0}
	dropsDelivery = &kind{"delivery_dropped", http.StatusConflict, "The way of delivery would be dropped",
		"The settings name no delivery, and replace ones that have another than pull: the topic has waiting tasks, which would not be delivered until they are pulled.",
		"Change some settings with PATCH, give the delivery (also if it is to be pull), or repeat the request with ?replace=true.", 0}
	noSuccessor = &kind{"nobody_to_take_over", http.StatusConflict, "No other node can take over",
		"No other live node shares the server's ledger and can take its tasks.",
		"Start another node first. Or stop this one: its tasks wait for its next start.", 0}
	staleReceipt = &kind{"stale_receipt", http.StatusConflict, "The receipt is stale",
		"The delivery of this receipt is over: it was settled, its lease ran out, or the task was handed out again.",
		"Drop it. If the task is still unfinished, it is delivered again with another receipt.", 0}
	changed = &kind{"precondition_failed", http.StatusPreconditionFailed, "It has another revision",
		"The task, or the settings of the topic, are not those that If-Match or If-None-Match names.",
		"Read it again, and repeat the change with the new ETag.", 0}
	tooSlow = &kind{"too_slow", http.StatusRequestTimeout, "The body came too slowly",
		"The body was not complete within a minute.",
		"Send smaller bodies, or find out what delays them.", 0}
	tooLarge = &kind{"too_large", http.StatusRequestEntityTooLarge, "Too large",
		"The body, a payload or the headers of a task are larger than this server accepts.",
		"Send less: put the data elsewhere and a reference to it into the payload, or send smaller batches.", 0}
	wrongMedia = &kind{"unsupported_media_type", http.StatusUnsupportedMediaType, "Another Content-Type or Content-Encoding is needed",
		"The Content-Type is missing or is not one that this route reads, or the body is compressed (Content-Encoding).",
		"Send Content-Type: application/json, or application/x-ndjson for a batch of lines, and the body uncompressed.", 0}
	invalid = &kind{"invalid", http.StatusUnprocessableEntity, "A field is wrong",
		"The body is JSON, but some field, parameter or header is unknown, missing, of the wrong type or out of range.",
		"Each entry of errors names a field and what it must be.", 0}
	badReceipt = &kind{"bad_receipt", http.StatusUnprocessableEntity, "Not a receipt",
		"The text is no receipt that this server has given out.",
		"Send receipts exactly as they were reserved.", 0}
	overloaded = &kind{"overloaded", http.StatusTooManyRequests, "Overloaded",
		"A limit is reached: of tasks in memory, of deliveries or writes under way, of bodies being read, of answers, of reserves that wait, or of streams of events. Tasks already accepted are kept.",
		"Repeat the request after Retry-After seconds.", time.Second}
	quota = &kind{"quota", http.StatusTooManyRequests, "A bound of the token is reached",
		"In the topics that the token is limited to there are as many tasks that wait, as many that are dead or kept, or as many topics with tasks, as it may have on a node (max_pending, max_topics).",
		"Wait until some are finished, or have the bound raised.", 10 * time.Second}
	outcomeUnknown = &kind{"outcome_unknown", http.StatusServiceUnavailable, "The outcome is unknown",
		"The ledger has not answered in time, and the write may have landed. With recorded: false, the ledger is known not to answer, or has no room: the process that has the task has cancelled it and does not deliver it any more. If that process ends before the ledger takes that, the task comes back.",
		"Repeat the request, with the id that the problem names if it names one: that is safe, whatever the outcome was.", time.Second}
	unavailable = &kind{"ledger_unavailable", http.StatusServiceUnavailable, "The ledger is not available",
		"The ledger takes no writes at the moment. Nothing was recorded except what done counts.",
		"Repeat the request after Retry-After seconds.", time.Second}
	busy = &kind{"busy", http.StatusServiceUnavailable, "Too many requests change the same task",
		"The ledger answers, but so many requests change the same task that this one did not get its turn in time. Nothing was recorded except what done counts.",
		"Repeat the request after Retry-After seconds; better, let fewer clients change one task at the same time.", time.Second}
	nodeAway = &kind{"node_unavailable", http.StatusServiceUnavailable, "The node does not answer",
		"The node that has the task, or that the path names, does not answer. Or the ownership of the task is changing: its node has died and no other node has adopted it yet, it is being handed over, or Redis has lost which node owns the task. Nothing was recorded.",
		"Repeat the request after Retry-After seconds. A node that has died is replaced after failover_after (10 s unless set) and the time to read its tasks.", time.Second}
	replaying = &kind{"replaying", http.StatusServiceUnavailable, "Still replaying",
		"The server has just started, or has just taken a shard over, and has not read back this task's record, the settings of this topic, or the list of dead tasks.",
		"Repeat the request after Retry-After seconds.", time.Second}
	starting = &kind{"starting", http.StatusServiceUnavailable, "Still starting",
		"The server has just started, and its ledger cannot be reached yet. /readyz says why.",
		"Repeat the request after Retry-After seconds.", time.Second}
	draining = &kind{"draining", http.StatusServiceUnavailable, "The node is draining",
		"The node is handing its tasks over to others and takes no new ones.",
		"Repeat the request after Retry-After seconds, or with another node.", time.Second}
	closing = &kind{"shutting_down", http.StatusServiceUnavailable, "Shutting down",
		"The server is about to end. Tasks already accepted are kept.",
		"Repeat the request after Retry-After seconds, or with another server.", time.Second}
	noBackup = &kind{"no_backup", http.StatusConflict, "No backup was made",
		"The server has no directory for backups, keeps its tasks in Redis, has a backup of this name, or has no room for one. The detail says which.",
		"Do what the detail says. Tasks in Redis are backed up by the means of Redis, or exported.", 0}
	internal = &kind{"internal", http.StatusInternalServerError, "Internal error",
		"A defect of the server. Its log has the details.",
		"Search the log for the X-Request-Id of the answer, and report it.", 0}
)

// catalogue lists all kinds, by status and then by name.
var catalogue = []*kind{
	malformed, unauthorized, crossOrigin, unconfirmed, forbidden, noAct, noNode, notFound, noSuchRoute, noTopic, wrongMethod, notAcceptable, tooSlow, dead, notDead, delivering,
	dropsDelivery, handled, idTaken, noBackup, noSuccessor, notUndone, staleReceipt, inUse, changed, tooLarge, wrongMedia, badReceipt, invalid,
	overloaded, quota, internal, draining, unavailable, busy, nodeAway, outcomeUnknown, replaying, closing, starting,
}

// answers maps the scheduler's errors to problems. The first match counts. Where tell is set, the
// error's own text goes to the caller. Other texts may name files and hosts.
var answers = []struct {
	err  error
	kind *kind
	tell bool
}{
	{tasks.ErrInvalid, invalid, false},
	{tasks.ErrTooLarge, tooLarge, true},
	{tasks.ErrNotFound, notFound, false},
	{tasks.ErrNoTopic, noTopic, false},
	{tasks.ErrExists, idTaken, false},
	{tasks.ErrDelivering, delivering, false},
	{tasks.ErrDead, dead, false},
	{tasks.ErrNotDead, notDead, false},
	{tasks.ErrHandled, handled, false},
	{tasks.ErrInUse, inUse, false},
	{tasks.ErrStale, staleReceipt, true},
	{tasks.ErrRevision, changed, true},
	{tasks.ErrReceipt, badReceipt, false},
	{tasks.ErrQuota, quota, true}, // wraps the next error
	{tasks.ErrOverloaded, overloaded, true},
	{tasks.ErrNoNode, noNode, false},
	{tasks.ErrNoAct, noAct, false},
	{tasks.ErrNoSuccessor, noSuccessor, false},
	{tasks.ErrUnknown, outcomeUnknown, false},
	{tasks.ErrNodeAway, nodeAway, false}, // wraps the next error
	{tasks.ErrContended, busy, false},    // wraps the next error
	{tasks.ErrUnavailable, unavailable, false},
	{tasks.ErrReplaying, replaying, false},
	{tasks.ErrDraining, draining, false},
	{tasks.ErrClosed, closing, false},
}

// problemOf turns an error of the scheduler, or of the decoder, into an answer. It returns nil for
// an error that is in no table. Such an error is a defect, which the caller of problemOf answers
// with 500.
func problemOf(err error) *Problem {
	if err == nil {
		return nil
	}
	if p := (*Problem)(nil); errors.As(err, &p) {
		return p
	}
	if e := (*syntaxError)(nil); errors.As(err, &e) {
		return malformed.with(e.Error())
	}
	if e := (*tasks.InvalidError)(nil); errors.As(err, &e) {
		return invalidFields(e.Fields)
	}
	if errors.Is(err, tasks.ErrNotGranted) {
		return notGranted()
	}
	for _, a := range answers {
		switch {
		case !errors.Is(err, a.err):
		case errors.Is(err, tasks.ErrUnrecorded):
			p := a.kind.with(tasks.ErrUnrecorded.Error())
			p.Recorded = new(bool)
			return p
		case a.tell:
			return a.kind.with(err.Error())
		default:
			return a.kind.with(where(err) + textOf(err, a.err, a.kind))
		}
	}
	return nil
}

// where names the node that made a call about the tasks of all nodes fail.
func where(err error) string {
	if e := (*tasks.NodeError)(nil); errors.As(err, &e) {
		return "node " + e.Node + ": "
	}
	return ""
}

// textOf returns why a request may be repeated, and for other problems the text of their general
// error: a kind of it may tell a caller about tasks of topics that are not granted to it.
func textOf(err, general error, k *kind) string {
	if e := (*tasks.KindError)(nil); k.retry > 0 && errors.As(err, &e) && errors.Is(e, general) {
		return e.Error()
	}
	for _, refusal := range []error{recovery.ErrFull, recovery.ErrBehind} { // without figures
		if k == unavailable && errors.Is(err, refusal) {
			return general.Error() + ": " + refusal.Error() + "; /readyz tells more"
		}
	}
	return general.Error()
}

// withFields makes a problem of this kind that names the fields, parameters or headers.
func (k *kind) withFields(faults []tasks.FieldError) *Problem {
	p := k.with("")
	names := make([]string, len(faults))
	p.Errors = make([]FieldFault, len(faults))
	for i, f := range faults {
		names[i] = f.Field
		p.Errors[i] = FieldFault(f)
	}
	p.Detail = "see errors: " + strings.Join(names, ", ")
	return p
}

// invalidFields is the answer to a request with these faults.
func invalidFields(faults []tasks.FieldError) *Problem { return invalid.withFields(faults) }

// invalidField is invalidFields for a single one.
func invalidField(field, problem string) *Problem {
	return invalidFields([]tasks.FieldError{{Field: field, Problem: problem}})
}

// withID names the task in a problem that allows the caller to repeat the request, and where there
// is no such task: of one that the caller may not use, the text is the same.
func (p *Problem) withID(id string) *Problem {
	switch p.Type {
	case problemBase + outcomeUnknown.name:
		p.ID = id
	case problemBase + notFound.name:
		if id = plainID(id); id != "" {
			p.Detail += ": " + id
		}
	}
	return p
}

// translate is a huma transformer. It replaces huma's own errors, which are about parameters only,
// by problems of the catalogue, and sets the request id in every problem. Types get the prefix.
func (s *Server) translate(ctx huma.Context, _ string, v any) (any, error) {
	p, ok := v.(*Problem)
	if e, theirs := v.(*huma.ErrorModel); theirs {
		p, ok = problemOfHuma(e, ctx.Operation()), true
	}
	if !ok {
		s.placeProblems(v)
		return v, nil
	}
	s.prefix.place(p)
	s.failed(p, ctx.Operation(), humagin.Unwrap(ctx))
	return p, nil
}

// placeProblems gives the prefix to the types of the problems in a body.
func (s *Server) placeProblems(body any) {
	if v, has := body.(withProblems); has {
		s.prefix.place(v.problems()...)
	}
}

// failed gives a problem the request's id, and logs it if it is a defect. Others may share it.
func (s *Server) failed(p *Problem, op *huma.Operation, c *gin.Context) {
	p.RequestID = c.Writer.Header().Get(requestIDHeader)
	if w, shares := c.Writer.(*collector); shares {
		w.failed = p
	}
	if p.cause != nil {
		s.log.Error("a request failed", "request_id", p.RequestID, "operation", op.OperationID, "error", p.cause)
	}
}

// givenTwice is what is wrong with a field or a parameter that is there more than once.
const givenTwice = "is given twice"

// problemOfHuma leaves out the values that huma repeats, and says what the parameters must be as
// the other checks do.
func problemOfHuma(e *huma.ErrorModel, op *huma.Operation) *Problem {
	if e.Status != http.StatusUnprocessableEntity {
		return internal.with("")
	}
	var faults []tasks.FieldError
	for _, d := range e.Errors {
		_, field, _ := strings.Cut(d.Location, ".") // "query.limit", "path.id", "query.kind[1]"
		field, _, _ = strings.Cut(field, "[")
		field = shortName(field)
		faults = append(faults, tasks.FieldError{Field: field, Problem: cmp.Or(mustBe(op, field), d.Message)})
	}
	return invalidFields(faults)
}

// shortName is the name of a parameter as an answer repeats it.
func shortName(name string) string {
	if len(name) > maxNamed {
		name = name[:maxNamed] + "..."
	}
	return strings.ToValidUTF8(name, "")
}

// mustBe says what a parameter of an operation must be; "" if its schema says no more than its
// type.
func mustBe(op *huma.Operation, name string) string {
	at := slices.IndexFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == name })
	if at < 0 {
		return "is not a known parameter"
	}
	schema := op.Parameters[at].Schema
	if schema.Items != nil {
		schema = schema.Items
	}
	switch {
	case len(schema.Enum) > 0:
		return "must be " + choice.Text(schema.Enum)
	case schema.Type == huma.TypeBoolean:
		return "must be true or false"
	case schema.Type == huma.TypeInteger && schema.Minimum != nil && schema.Maximum != nil:
		return fmt.Sprintf("must be an integer from %.0f to %.0f", *schema.Minimum, *schema.Maximum)
	}
	return ""
}
