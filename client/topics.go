package client

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/goccy/go-json"
)

// Settings say how the tasks of a topic are delivered. Zero fields get the server's
// defaults.
type Settings struct {
	Delivery Way   `json:"delivery,omitzero"`
	Retry    Retry `json:"retry,omitzero"`
	// Lease is how long a delivery may stay unsettled, 1 s to 24 h.
	Lease Duration `json:"lease,omitempty"`
	// Concurrency bounds the deliveries at once, 1 to 100,000. Pull is not bound by it.
	Concurrency int `json:"concurrency,omitempty"`
	// Rate bounds how many deliveries begin; nil: no bound.
	Rate *Rate `json:"rate,omitempty"`
	// Weight is the share of the node's places for deliveries when they are scarce, 1 to 1,000.
	Weight int `json:"weight,omitempty"`
	// Spread is the window from the deadline on over which the first attempts of tasks of
	// one instant are spread evenly, to 24 h.
	Spread Duration `json:"spread,omitempty"`
	// Misfire says what happens to tasks that fell due while no process held them: "deliver",
	// "skip" or "coalesce".
	Misfire string `json:"misfire,omitempty"`
	// DeadRetention is how long dead tasks are kept, 1 min to 3660 days.
	DeadRetention Duration `json:"dead_retention,omitempty"`
	// KeepFinished is how long finished tasks can be read, and the same request is answered as a
	// repeated one, up to 30 days. 0: not at all.
	KeepFinished Duration `json:"keep_finished,omitempty"`
	// ConcurrencyPerGroup bounds the deliveries at once of one group of tasks, on each node, to
	// 10,000; 0: no bound.
	ConcurrencyPerGroup int `json:"concurrency_per_group,omitempty"`
	// OnDead has a task that dies followed by one of another topic; nil: by none.
	OnDead *OnDead `json:"on_dead,omitempty"`
	// TaskDelivery lets tasks have a Request.Delivery.
	TaskDelivery bool `json:"task_delivery"`
	// Links are addresses of pages about each task, by name; {id}, {topic} and {group} stand for
	// those of the task. At most 8. Topics and ListTopics leave them out.
	Links map[string]string `json:"links,omitempty"`
	// CountCrashes records each attempt before it is delivered.
	CountCrashes bool `json:"count_crashes"`
	// Paused: tasks are accepted, but not delivered.
	Paused bool `json:"paused"`
}

// OnDead says what follows a dead task.
type OnDead struct {
	Topic string   `json:"topic"`
	Delay Duration `json:"delay,omitempty"` // from the death to the deadline, to 10 years
}

// Way is a way of delivery, with the fields that the way itself defines, such as
// Way{Kind: "webhook", Settings: map[string]any{"url": "https://shop/hooks"}}.
type Way struct {
	Kind     string // "pull", "webhook", "stream", "pubsub", "handler" and others of the server
	Settings map[string]any
}

// MarshalJSON writes kind and settings into one object.
func (w Way) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	maps.Copy(all, w.Settings)
	if w.Kind != "" {
		all["kind"] = w.Kind
	}
	return json.Marshal(all)
}

// UnmarshalJSON is the reverse.
func (w *Way) UnmarshalJSON(text []byte) error {
	*w = Way{}
	if err := json.Unmarshal(text, &w.Settings); err != nil {
		return err
	}
	w.Kind, _ = w.Settings["kind"].(string)
	delete(w.Settings, "kind")
	return nil
}

// IsZero reports whether no way is chosen.
func (w Way) IsZero() bool { return w.Kind == "" && len(w.Settings) == 0 }

// Rate bounds how many deliveries begin, on each node.
type Rate struct {
	PerSecond float64 `json:"per_second"`      // 0.001 to 1,000,000
	Burst     int     `json:"burst,omitempty"` // how many may begin at once after a rest
}

// Retry is the schedule of attempts.
type Retry struct {
	MaxAttempts int `json:"max_attempts,omitempty"` // 1 to 1,000,000; then the task is dead
	// MaxAge, 1 s to 3660 days: the first attempt that fails this long after the deadline is the
	// last one.
	MaxAge     Duration `json:"max_age,omitempty"`
	MinBackoff Duration `json:"min_backoff,omitempty"` // 1 ms to 24 h
	MaxBackoff Duration `json:"max_backoff,omitempty"` // MinBackoff to 30 days
}

// TopicInfo is a topic as the server shows it: all its settings, defaults included.
type TopicInfo struct {
	Name string `json:"name"`
	Settings
	// ConcurrencySet reports whether Concurrency is set. If it is not, it is the default, and a
	// backlog raises it: ConcurrencyNow is the bound in force.
	ConcurrencySet bool `json:"concurrency_set"`
	ConcurrencyNow int  `json:"concurrency_now"`
	// Undeliverable says why the node cannot deliver the topic's tasks, which wait.
	Undeliverable string `json:"undeliverable"`
	// LastError is why the last attempt failed of those that have failed at the node since its
	// start; LastFailedAt is when it ended, nil if none has failed.
	LastError    string     `json:"last_error"`
	LastFailedAt *time.Time `json:"last_failed_at"`
	// Troubles says what is wrong with the topic, the worst first, as Diagnosis does.
	Troubles []Trouble `json:"troubles"`
	// Revision of the settings; 0 if none are set.
	Revision int64  `json:"revision"`
	Counts   Counts `json:"counts"`
	// Reach says which nodes the figures are of. It is empty in a list, which has its own, and in
	// answers to changes.
	Reach
}

// Chosen returns the settings in the form of SetTopic, to change some of them. Settings that are
// not set, and so are the server's choice, are zero.
func (t *TopicInfo) Chosen() Settings {
	s := t.Settings
	if !t.ConcurrencySet {
		s.Concurrency = 0
	}
	return s
}

// AnyRevision lets SetTopic replace settings of any revision.
const AnyRevision int64 = -1

// TopicQuery selects topics, and says which come first. The zero value is all topics, by name.
type TopicQuery struct {
	Search string    // a part of their names, in whatever case; empty: all
	Sort   TopicSort // empty: by name
	Limit  int       // 1 to 1,000 a page; 0: 1,000
	Cursor string    // TopicPage.NextCursor of the page before; empty: the first page
	Scope  Scope     // empty: ScopeFleet
}

// A TopicSort says which topics come first. Those that it does not tell apart come by name.
type TopicSort string

// The orders of topics.
const (
	SortName TopicSort = "name"
	// SortWorst: topics that are late, then those that fail, then those with dead tasks, then those
	// that are paused, and then all others.
	SortWorst   TopicSort = "worst"
	SortLate    TopicSort = "late"    // the oldest ready task
	SortFailed  TopicSort = "failed"  // most attempts that failed in the last 5 minutes
	SortDead    TopicSort = "dead"    // most dead tasks
	SortReady   TopicSort = "ready"   // most ready tasks
	SortPending TopicSort = "pending" // most pending tasks
	SortPaused  TopicSort = "paused"  // those that are
)

// FindTopics returns a page of the topics that q selects, with settings and counts. A topic whose
// figures change between two pages may be in both or in none. Errors: ErrInvalid, ErrUnreachable.
func (c *Client) FindTopics(ctx context.Context, q TopicQuery) (*TopicPage, error) {
	values := scoped([]Scope{q.Scope})
	for name, value := range map[string]string{"search": q.Search, "sort": string(q.Sort), "cursor": q.Cursor} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if q.Limit != 0 {
		values.Set("limit", strconv.Itoa(q.Limit))
	}
	p := &TopicPage{}
	if _, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/topics", query: values, effect: reads}, p); err != nil {
		return nil, err
	}
	return p, nil
}

// ListTopics returns a page of topics, with settings and counts: the first one, or the one of the
// previous page's NextCursor. limit is 1 to 1,000; 0 stands for 1,000. Errors: ErrInvalid,
// ErrUnreachable.
func (c *Client) ListTopics(ctx context.Context, limit int, cursor string, scope ...Scope) (*TopicPage, error) {
	q := TopicQuery{Limit: limit, Cursor: cursor}
	if len(scope) > 0 {
		q.Scope = scope[0]
	}
	return c.FindTopics(ctx, q)
}

// Topics returns all topics, page by page, with settings and counts. Errors:
// ErrUnreachable.
func (c *Client) Topics(ctx context.Context, scope ...Scope) ([]TopicInfo, error) {
	var all []TopicInfo
	for cursor := ""; ; {
		p, err := c.ListTopics(ctx, 0, cursor, scope...)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Topics...)
		if cursor = p.NextCursor; cursor == "" {
			return all, nil
		}
	}
}

// Topic returns a topic. Errors: ErrNoTopic if it was never set up and never had a task, or was
// deleted and has no task; ErrInvalid, ErrUnreachable.
func (c *Client) Topic(ctx context.Context, name string, scope ...Scope) (*TopicInfo, error) {
	return c.topic(ctx, call{method: http.MethodGet, query: scoped(scope), effect: reads}, name)
}

// SetTopic replaces all settings of a topic. Zero fields get their defaults. A revision other than
// AnyRevision must be that of the present settings; 0 means that the topic has none. Settings
// without a Delivery are refused while the topic has tasks and a Delivery other than pull. To keep
// the other settings, use ChangeTopic.
//
// Errors: ErrInvalid, ErrInUse, ErrRevision, ErrUnavailable, ErrUnknown, ErrUnreachable.
func (c *Client) SetTopic(ctx context.Context, name string, s Settings, revision int64) (*TopicInfo, error) {
	return c.writeTopic(ctx, http.MethodPut, name, s, revision)
}

// ChangeTopic changes the settings of a topic that patch names, by their JSON names. nil gives a
// field its default again. An object changes the fields that it names: a JSON merge patch (RFC
// 7396). The revision is as of SetTopic.
//
// Errors: those of SetTopic.
func (c *Client) ChangeTopic(ctx context.Context, name string, patch map[string]any, revision int64) (*TopicInfo, error) {
	return c.writeTopic(ctx, http.MethodPatch, name, patch, revision)
}

func (c *Client) writeTopic(ctx context.Context, method, name string, settings any, revision int64) (*TopicInfo, error) {
	body, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	q := call{method: method, body: body, effect: same}
	if revision != AnyRevision {
		// A repeated call would find its own new revision.
		q.effect = again
		q.header = http.Header{"If-Match": {`"` + strconv.FormatInt(revision, 10) + `"`}}
	}
	return c.topic(ctx, q, name)
}

func (c *Client) topic(ctx context.Context, q call, name string) (*TopicInfo, error) {
	t := &TopicInfo{}
	if err := c.onTopic(ctx, q, name, "", t); err != nil {
		return nil, err
	}
	return t, nil
}

// DeleteTopic forgets the settings of a topic that has no tasks, its dead ones aside.
// Errors: ErrNoTopic, ErrInUse, ErrUnavailable, ErrUnknown, ErrUnreachable.
func (c *Client) DeleteTopic(ctx context.Context, name string) error {
	return c.onTopic(ctx, call{method: http.MethodDelete, effect: again}, name, "", nil)
}

// KillTopic makes the pending and ready tasks of a topic dead, and then forgets its settings. It
// does not change tasks that are being delivered. Errors: ErrNoTopic, ErrUnavailable, ErrUnknown,
// ErrUnreachable. Some may be dead before the error; repeating the call does the rest.
func (c *Client) KillTopic(ctx context.Context, name string) error {
	return c.onTopic(ctx, call{method: http.MethodDelete, effect: again, extra: wholeTopic}, name, "?force=true", nil)
}

// PauseTopic stops the delivery of a topic's tasks. New tasks are accepted, and wait. Errors:
// ErrInvalid, ErrUnavailable, ErrUnknown, ErrUnreachable.
func (c *Client) PauseTopic(ctx context.Context, topic string) error {
	return c.onTopic(ctx, call{method: http.MethodPost, effect: same}, topic, "/pause", nil)
}

// ResumeTopic delivers a topic's tasks again. Errors: those of PauseTopic.
func (c *Client) ResumeTopic(ctx context.Context, topic string) error {
	return c.onTopic(ctx, call{method: http.MethodPost, effect: same}, topic, "/resume", nil)
}

// Purge cancels all pending and ready tasks of a topic. A name that ends with an asterisk
// ("order.*") stands for all topics that begin so. Errors: ErrInvalid, ErrUnavailable, ErrUnknown,
// ErrUnreachable. Some may have been cancelled before the error; repeating the call does the rest.
func (c *Client) Purge(ctx context.Context, topic string) (*Purged, error) {
	p := &Purged{}
	if err := c.onTopic(ctx, call{method: http.MethodDelete, effect: again, extra: wholeTopic}, topic, "/tasks", p); err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Client) onTopic(ctx context.Context, q call, topic, rest string, into any) error {
	return c.named(ctx, q, "/v1/topics/", "topic", topic, rest, into)
}
