package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// The types of other packages on their way to another node. They have the same fields, and names
// of their own for the wire, so that a field can be renamed for callers without a change of what
// nodes of two versions send one another.
//
// A conversion such as WireTask(t) compiles only while both types have the same fields. A field
// that is added to the other package has to be added here as well. For one that is renamed there,
// and for a type with another wire type in it, the conversion has to be written out.

// A WireTask is a task.Task.
type WireTask struct {
	ID          string            `json:"ID"`
	Topic       string            `json:"Topic"`
	State       task.State        `json:"State"`
	Due         time.Time         `json:"Due"`
	Next        time.Time         `json:"Next"`
	Payload     []byte            `json:"Payload"`
	Headers     map[string]string `json:"Headers"`
	Group       string            `json:"Group"`
	MaxLateness time.Duration     `json:"MaxLateness"`
	Attempt     int               `json:"Attempt"`
	Revision    int64             `json:"Revision"`
	Created     time.Time         `json:"Created"`
	Died        time.Time         `json:"Died"`
	Reason      task.Reason       `json:"Reason"`
	LastError   string            `json:"LastError"`
	Node        string            `json:"Node"`
	Spooled     bool              `json:"Spooled"`
	Repeated    bool              `json:"Repeated"`
	Attempts    []wireAttempt     `json:"Attempts,omitempty"`
	HeldAt      time.Time         `json:"HeldAt,omitzero"`
	Remaining   time.Duration     `json:"Remaining,omitempty"`
	Finished    time.Time         `json:"Finished,omitzero"`
	Outcome     task.Outcome      `json:"Outcome,omitempty"`
	Target      *wireTarget       `json:"Target,omitempty"`
	SeenAt      time.Time         `json:"SeenAt,omitzero"`
}

// A wireAttempt is a task.Attempt.
type wireAttempt struct {
	Number  int                 `json:"Number"`
	Ended   time.Time           `json:"Ended"`
	Took    time.Duration       `json:"Took,omitempty"`
	By      string              `json:"By,omitempty"`
	Outcome task.AttemptOutcome `json:"Outcome"`
	Error   string              `json:"Error,omitempty"`
}

// EncodeTask makes the wire form of a task.
func EncodeTask(t *task.Task) WireTask {
	w := WireTask{
		t.ID, t.Topic, t.State, t.Due, t.Next, t.Payload, t.Headers, t.Group, t.MaxLateness, t.Attempt, t.Revision,
		t.Created, t.Died, t.Reason, t.LastError, t.Node, t.Spooled, t.Repeated, nil, t.HeldAt, t.Remaining,
		t.Finished, t.Outcome, encodeTarget(t.Target), t.SeenAt,
	}
	for _, a := range t.Attempts {
		w.Attempts = append(w.Attempts, wireAttempt(a))
	}
	return w
}

func (w *WireTask) decode() task.Task {
	t := task.Task{
		ID: w.ID, Topic: w.Topic, State: w.State, Due: w.Due, Next: w.Next, Payload: w.Payload, Headers: w.Headers,
		Group: w.Group, MaxLateness: w.MaxLateness, Attempt: w.Attempt, Revision: w.Revision,
		Created: w.Created, Died: w.Died, Reason: w.Reason, LastError: w.LastError, Node: w.Node, Spooled: w.Spooled, Repeated: w.Repeated,
		HeldAt: w.HeldAt, Remaining: w.Remaining,
		Finished: w.Finished, Outcome: w.Outcome, Target: w.Target.decode(), SeenAt: w.SeenAt,
	}
	for _, a := range w.Attempts {
		t.Attempts = append(t.Attempts, task.Attempt(a))
	}
	return t
}

// A wireRequest is a task.Request.
type wireRequest struct {
	ID          string            `json:"ID"`
	Topic       string            `json:"Topic"`
	Due         time.Time         `json:"Due"`
	Delay       time.Duration     `json:"Delay"`
	Payload     []byte            `json:"Payload"`
	Headers     map[string]string `json:"Headers"`
	Group       string            `json:"Group"`
	MaxLateness time.Duration     `json:"MaxLateness"`
	Target      *wireTarget       `json:"Target,omitempty"`
	Held        bool              `json:"Held,omitempty"`
	Supersede   bool              `json:"Supersede,omitempty"`
}

// A wireMove is a task.Move.
type wireMove struct {
	Due     time.Time      `json:"Due"`
	Delay   *time.Duration `json:"Delay"`
	Payload []byte         `json:"Payload"`
	Target  *wireTarget    `json:"Target,omitempty"`
}

// A wireVerdict is a task.Verdict.
type wireVerdict struct {
	Verb   task.Verb      `json:"Verb"`
	Delay  *time.Duration `json:"Delay"`
	Lease  time.Duration  `json:"Lease"`
	Reason string         `json:"Reason"`
}

// A wireField is a task.FieldError.
type wireField struct {
	Field   string `json:"Field"`
	Problem string `json:"Problem"`
}

// A wireListed is an engine.Listed.
type wireListed struct {
	Task WireTask `json:"Task"`
	At   int64    `json:"At"`
}

// A wireRef is a recovery.Ref.
type wireRef struct {
	ID   string `json:"ID"`
	Next int64  `json:"Next"`
}

// A wireListQuery is an engine.ListQuery.
type wireListQuery struct {
	Topic    string     `json:"Topic"`
	Group    string     `json:"Group"`
	State    task.State `json:"State"`
	Limit    int        `json:"Limit"`
	After    wireRef    `json:"After"`
	Bytes    int        `json:"Bytes,omitempty"`
	Patterns []string   `json:"Patterns,omitempty"`

	Retrying bool        `json:"Retrying,omitempty"`
	IDPrefix string      `json:"IDPrefix,omitempty"`
	Error    string      `json:"Error,omitempty"`
	Reason   task.Reason `json:"Reason,omitempty"`
	From     int64       `json:"From,omitempty"`
	To       int64       `json:"To,omitempty"`
	Brief    bool        `json:"Brief,omitempty"`
	Like     string      `json:"Like,omitempty"`
	Node     string      `json:"Node,omitempty"`
}

func encodeListQuery(q *engine.ListQuery) wireListQuery {
	f := &q.Filter
	return wireListQuery{
		q.Topic, q.Group, q.State, q.Limit, wireRef(q.After), q.Bytes, q.Patterns, q.Retrying,
		f.IDPrefix, f.Error, f.Reason, f.From, f.To, q.Brief, f.Like, q.Node,
	}
}

func (q *wireListQuery) decode() engine.ListQuery {
	d := engine.ListQuery{
		Topic: q.Topic, Group: q.Group, State: q.State, Limit: q.Limit,
		After: recovery.Ref(q.After), Bytes: q.Bytes, Patterns: q.Patterns, Retrying: q.Retrying, Brief: q.Brief, Node: q.Node,
		Filter: engine.Filter{IDPrefix: q.IDPrefix, Error: q.Error, Like: q.Like, Reason: q.Reason, From: q.From, To: q.To},
	}
	if engine.ListsBuried(q.State) {
		d.Filter.Group = q.Group
	}
	return d
}

// A WirePurgeQuery is an engine.PurgeQuery.
type WirePurgeQuery struct {
	Topic    string   `json:"Topic"`
	Group    string   `json:"Group"`
	Kill     bool     `json:"Kill"`
	Keep     int      `json:"Keep"`
	Patterns []string `json:"Patterns,omitempty"`
}

// A wireRedriveQuery is an engine.RedriveQuery.
type wireRedriveQuery struct {
	Topic  string   `json:"Topic"`
	Delete bool     `json:"Delete"`
	Due    int64    `json:"Due"`
	All    bool     `json:"All"`
	IDs    []string `json:"IDs,omitempty"`
	Died   int64    `json:"Died,omitempty"`
	Left   int      `json:"Left,omitempty"`
	After  wireRef  `json:"After"`
	Act    *wireAct `json:"Act,omitempty"` // nil: they are redriven
}

// A wireAct is an engine.ActQuery.
type wireAct struct {
	Action task.Action    `json:"Action"`
	Due    int64          `json:"Due,omitempty"`
	Shift  int64          `json:"Shift,omitempty"`
	Select *wireListQuery `json:"Select,omitempty"`
	Stamp  uint64         `json:"Stamp,omitempty"`
	Dry    bool           `json:"Dry,omitempty"`
}

func encodeAct(q *engine.ActQuery) *wireAct {
	if q == nil {
		return nil
	}
	w := &wireAct{Action: q.Action, Due: q.Due, Shift: q.Shift, Stamp: q.Stamp, Dry: q.Dry}
	if q.Select != nil {
		s := encodeListQuery(q.Select)
		w.Select = &s
	}
	return w
}

func (w *wireAct) decode() *engine.ActQuery {
	if w == nil {
		return nil
	}
	q := &engine.ActQuery{Action: w.Action, Due: w.Due, Shift: w.Shift, Stamp: w.Stamp, Dry: w.Dry}
	if w.Select != nil {
		s := w.Select.decode()
		q.Select = &s
	}
	return q
}

func encodeRedriveQuery(q *engine.RedriveQuery) wireRedriveQuery {
	return wireRedriveQuery{q.Topic, q.Delete, q.Due, q.All, q.IDs, q.Died, q.Left, wireRef(q.After), encodeAct(q.Act)}
}

func (q *wireRedriveQuery) decode() engine.RedriveQuery {
	return engine.RedriveQuery{
		Topic: q.Topic, Delete: q.Delete, Due: q.Due, All: q.All, IDs: q.IDs,
		Died: q.Died, Left: q.Left, After: recovery.Ref(q.After), Act: q.Act.decode(),
	}
}

// replyTask makes the reply of a call whose answer is a task.
func replyTask(t task.Task, err error) (WireTask, error) { return EncodeTask(&t), err }

// callTask is Call of a method whose answer is a task.
func callTask[Q any](ctx context.Context, s *Cluster, node string, m Method[Q, WireTask], q Q) (task.Task, error) {
	t, err := Call(ctx, s, node, m, q)
	return t.decode(), err
}

// RoutedTask is Routed of a method whose answer is a task.
func RoutedTask[Q any](ctx context.Context, s *Cluster, id string, m Method[Q, WireTask], q func(recovery.ShardID) Q, here func(context.Context) (task.Task, error)) (task.Task, error) {
	t, _, err := Routed(ctx, s, id, m, q, func(ctx context.Context) (WireTask, error) { return replyTask(here(ctx)) })
	return t.decode(), err
}

// A WireDelivery is a delivery on its way to another node, whose receivers or workers make it.
// It stays open here, as a delivery that only its receipt can settle.
type WireDelivery struct {
	Task    WireTask
	Receipt string
	Lease   time.Duration // what is left of it
}

// EncodeDeliveries makes the wire form of deliveries for another node.
func (s *Cluster) EncodeDeliveries(ds []*engine.Delivery) []WireDelivery {
	packed := make([]WireDelivery, len(ds))
	now := s.engine.Elapsed()
	for i, d := range ds {
		packed[i] = WireDelivery{EncodeTask(&d.Task), d.Receipt(), d.Lease.Until - now}
	}
	return packed
}

// decodeDeliveries decodes deliveries that another node has sent at some time after sent. Their
// leases are counted from sent, so that none ends here after it has ended there: this node may have
// been suspended meanwhile.
func (s *Cluster) decodeDeliveries(from string, packed []WireDelivery, sent time.Duration, work any) []*engine.Delivery {
	ds := make([]*engine.Delivery, len(packed))
	wall := s.engine.Config.Clock().Add(sent - s.engine.Elapsed())
	for i, p := range packed {
		ds[i] = engine.NewDelivery(engine.Delivery{
			Lease: engine.Lease{Until: sent + p.Lease}, Given: p.Receipt,
			Source: &engine.Source{Node: from, Lease: p.Lease, Work: work},
		}, p.Task.decode(), wall.Add(p.Lease).UTC())
	}
	return ds
}

// splitByLease splits deliveries of another node into those whose leases still run, and those
// whose leases are over.
func (s *Cluster) splitByLease(ds []*engine.Delivery) (run, over []*engine.Delivery) {
	now := s.engine.Elapsed()
	for _, d := range ds {
		if d.Lease.Until > now {
			run = append(run, d)
		} else {
			over = append(over, d)
		}
	}
	return run, over
}

// wireConditions are the conditions of a call on their way to another node.
type wireConditions struct {
	Topics     []string `json:",omitempty"`
	MaxTopics  int      `json:",omitempty"`
	MaxPending int      `json:",omitempty"`
	Reserved   bool     `json:",omitempty"`
	Revision   int64    `json:",omitempty"`
	Created    int64    `json:",omitempty"`

	TraceParent string `json:",omitempty"`
	TraceState  string `json:",omitempty"`
}

// encodeConditions returns the conditions of a call; nil if there are none.
func encodeConditions(ctx context.Context) *wireConditions {
	t := task.ConditionsOf(ctx)
	if t == nil {
		return nil
	}
	w := &wireConditions{Revision: t.Version.Revision, TraceParent: t.Trace.Parent, TraceState: t.Trace.State}
	if !t.Version.Created.IsZero() {
		w.Created = t.Version.Created.UnixNano()
	}
	if g := t.Grant; g != nil {
		w.Topics, w.MaxTopics, w.MaxPending, w.Reserved = g.Topics, g.MaxTopics, g.MaxPending, g.Reserved
	}
	return w
}

// in makes the context of a call of another node with these conditions.
func (w *wireConditions) in(ctx context.Context) context.Context {
	if w == nil {
		return ctx
	}
	t := task.Conditions{
		Grant:   &task.Grant{Topics: w.Topics, MaxTopics: w.MaxTopics, MaxPending: w.MaxPending, Reserved: w.Reserved},
		Version: task.Version{Revision: w.Revision},
		Trace:   task.TraceContext{Parent: w.TraceParent, State: w.TraceState},
	}
	if w.Created != 0 {
		t.Version.Created = engine.FromNanos(w.Created)
	}
	return t.In(ctx)
}
