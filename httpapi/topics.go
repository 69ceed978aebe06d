package httpapi

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// NewTopic describes the settings of a topic in a request.
type NewTopic struct {
	Delivery     Delivery  `json:"delivery,omitempty"`
	Retry        *NewRetry `json:"retry,omitempty"`
	Lease        span      `json:"lease,omitempty" doc:"How long a delivery may stay unsettled, 1s to 24h. Default 30s."`
	Concurrency  int       `json:"concurrency,omitempty" minimum:"1" maximum:"100000" doc:"Deliveries at once; pull is not bound by it. Default 64. Left out, a backlog may raise it (sweep.max_concurrency)."`
	Rate         *Rate     `json:"rate,omitempty"`
	Weight       int       `json:"weight,omitempty" minimum:"1" maximum:"1000" doc:"Share of the node's places for deliveries when they are scarce, beside other topics. Default 1."`
	Spread       span      `json:"spread,omitempty" doc:"Window over which tasks of one instant are delivered, 0 to 24h. Each has a place in it that follows from its id. Default 0."`
	Misfire      string    `json:"misfire,omitempty" enum:"deliver,skip,coalesce" doc:"Default deliver. What becomes of tasks that fell due while no process held them, a restart of one second included. coalesce: of those with the same group only the one with the latest deadline is delivered."`
	CountCrashes bool      `json:"count_crashes,omitempty" doc:"Record each attempt before it is delivered."`
	Paused       bool      `json:"paused,omitempty" doc:"Accept tasks, but do not deliver them."`

	DeadRetention span      `json:"dead_retention,omitempty" doc:"How long dead tasks are kept, 1m to 3660d. Default 7d."`
	KeepFinished  span      `json:"keep_finished,omitempty" doc:"How long finished tasks can be read, and the same request is answered as a repeated one, 0 to 30d. Default 0: not at all."`
	PerGroup      int       `json:"concurrency_per_group,omitempty" minimum:"0" maximum:"10000" doc:"Deliveries of one group of tasks at once, on each node, by pull too. Tasks without a group are not bound. Default 0: no bound."`
	OnDead        *OnDeadIn `json:"on_dead,omitempty"`

	Links map[string]string `json:"links,omitempty" maxProperties:"8" doc:"Addresses that the dashboard shows with each task, by the text of the link: of logs, traces, the order in the shop. http or https, at most 1,024 bytes each; {id}, {topic} and {group} stand for those of the task, not in the host. At most 8."`

	TaskDelivery bool `json:"task_delivery,omitempty" doc:"Let tasks have a delivery of their own: their receiver, as far as the kind lets them choose it, and their retry. Without it, tasks that have a receiver of their own wait."`
}

// OnDeadIn describes what follows a dead task, in a request.
type OnDeadIn struct {
	Topic string `json:"topic" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" minLength:"1" maxLength:"128" doc:"A task that dies (attempts exhausted, too old, or buried) is followed by a new one of this topic, with its payload, group and headers, and headers lapse-dead-* that tell of the death."`
	Delay span   `json:"delay,omitempty" doc:"From the death to the deadline of that task, at most 10 years. Default 0."`
}

// OnDead says what follows a dead task.
type OnDead struct {
	Topic string   `json:"topic"`
	Delay duration `json:"delay"`
}

// NewRetry describes the schedule of attempts in a request.
type NewRetry struct {
	MaxAttempts int  `json:"max_attempts,omitempty" minimum:"1" maximum:"1000000" doc:"Then the task is dead. Left out, max_age alone ends it (with count_crashes: 20)."`
	MaxAge      span `json:"max_age,omitempty" doc:"The first attempt that fails this long after the deadline is the last one, 1s to 3660d. Default: 24h where max_attempts is left out, else no bound."`
	MinBackoff  span `json:"min_backoff,omitempty" doc:"1ms to 24h. Default 1s."`
	MaxBackoff  span `json:"max_backoff,omitempty" doc:"min_backoff to 30d. Default 10m."`
}

// Rate bounds how many deliveries begin.
type Rate struct {
	PerSecond float64 `json:"per_second" minimum:"0.001" maximum:"1000000" doc:"Deliveries a second, on each node."`
	Burst     int     `json:"burst,omitempty" minimum:"1" maximum:"1000000" doc:"How many may begin at once after a rest. Default: per_second, rounded up."`
}

// Topic is a topic in an answer.
type Topic struct {
	Name         string   `json:"name"`
	Delivery     Delivery `json:"delivery"`
	Retry        Retry    `json:"retry"`
	Lease        duration `json:"lease"`
	Concurrency  int      `json:"concurrency"`
	Rate         *Rate    `json:"rate,omitempty" doc:"Absent: no bound."`
	Weight       int      `json:"weight"`
	Spread       duration `json:"spread"`
	Misfire      string   `json:"misfire"`
	CountCrashes bool     `json:"count_crashes"`
	Paused       bool     `json:"paused"`
	Revision     int64    `json:"revision" doc:"Of the settings; 0 if none are set."`
	Counts       Counts   `json:"counts"`

	ConcurrencySet bool     `json:"concurrency_set" doc:"Whether concurrency is set. Unset, it is the default, and a backlog raises it."`
	DeadRetention  duration `json:"dead_retention"`
	KeepFinished   duration `json:"keep_finished" doc:"How long finished tasks are kept; 0s: not at all."`
	PerGroup       int      `json:"concurrency_per_group" doc:"Deliveries of one group of tasks at once, on each node; 0: no bound."`
	TaskDelivery   bool     `json:"task_delivery" doc:"Whether tasks may have a delivery of their own."`
	OnDead         *OnDead  `json:"on_dead,omitempty" doc:"What follows a dead task. Absent: nothing."`
	Undeliverable  string   `json:"undeliverable,omitempty" doc:"Why this node cannot deliver the topic's tasks: it lacks what their settings need, or has no receiver at the moment. The tasks wait. If it can, why another node cannot, which is named."`
	ConcurrencyNow int      `json:"concurrency_now" doc:"The bound in force: concurrency, or more during a backlog. Of several nodes the greatest."`
	LastError      string   `json:"last_error,omitempty" doc:"Why the last attempt failed of those that have failed since the start, cut to 256 bytes. Left out if none has."`
	LastFailedAt   string   `json:"last_failed_at,omitempty" format:"date-time" doc:"When that attempt ended."`

	Links map[string]string `json:"links,omitempty" doc:"Addresses of pages about each of its tasks, by name. Only in an answer about one topic; left out if there are none."`

	Troubles []Trouble `json:"troubles,omitempty" nullable:"false" doc:"What is wrong with the topic, the worst first, as GET /v1/diagnosis says it. Left out if nothing is."`
}

// Retry is the schedule of attempts in an answer.
type Retry struct {
	MaxAttempts int      `json:"max_attempts,omitempty" required:"true"`
	MaxAge      duration `json:"max_age,omitempty" doc:"Left out: no bound."`
	MinBackoff  duration `json:"min_backoff"`
	MaxBackoff  duration `json:"max_backoff"`
}

// TopicList is a page of topics.
type TopicList struct {
	Reach
	Matched    int     `json:"matched,omitempty" doc:"With search or sort: how many topics all pages have together, at least. Left out if there is none."`
	Topics     []Topic `json:"topics" nullable:"false"`
	NextCursor string  `json:"next_cursor,omitempty" doc:"For the page after this one. Left out at the end."`
}

func wireTopic(t *task.Topic) Topic {
	set := &t.Settings
	wire := Topic{
		Name: t.Name, Delivery: Delivery{string(set.Kind), set.Delivery},
		Retry: Retry{set.Retry.MaxAttempts, duration(set.Retry.MaxAge), duration(set.Retry.MinBackoff), duration(set.Retry.MaxBackoff)},
		Lease: duration(set.Lease), Concurrency: set.Concurrency,
		Weight: set.Weight, Spread: duration(set.Spread), Misfire: string(set.Misfire),
		CountCrashes: set.CountCrashes, Paused: set.Paused,
		DeadRetention: duration(set.DeadRetention), KeepFinished: duration(set.KeepFinished), Undeliverable: t.Undeliverable,
		Revision: t.Revision, Counts: wireCounts(&t.Counts),
		ConcurrencySet: t.ConcurrencySet, ConcurrencyNow: t.ConcurrencyNow,
		LastError: t.LastError, LastFailedAt: formatInstant(t.LastFailed), TaskDelivery: set.TaskDelivery, PerGroup: set.ConcurrencyPerGroup,
		Links: set.Links, Troubles: wireTroubles(t.Troubles(time.Now())),
	}
	if set.OnDead != (tasks.OnDead{}) {
		wire.OnDead = &OnDead{set.OnDead.Topic, duration(set.OnDead.Delay)}
	}
	if set.Rate != (tasks.Rate{}) {
		wire.Rate = &Rate{set.Rate.PerSecond, set.Rate.Burst}
	}
	return wire
}

func wireTopics(topics []task.Topic) []Topic {
	list := make([]Topic, len(topics))
	for i := range topics {
		list[i] = wireTopic(&topics[i])
		list[i].Links = nil // up to 8 kB a topic
	}
	return list
}

// settings reads the settings of a topic in a request.
func (s *scanner) settings(t *tasks.TopicSettings) {
	for key := range s.object("") {
		switch string(key) {
		case "delivery":
			s.delivery(t)
		case "retry":
			s.retry(&t.Retry, "")
		case "lease":
			t.Lease = s.span("lease", tasks.MinLease, tasks.MaxLease)
		case "concurrency":
			t.Concurrency = s.integer("concurrency", 1, 100_000)
		case "rate":
			s.rate(&t.Rate)
		case "weight":
			t.Weight = s.integer("weight", 1, 1000)
		case "spread":
			t.Spread = s.span("spread", 0, day)
		case "misfire":
			if t.Misfire = tasks.Misfire(s.str("misfire")); s.err == nil && t.Misfire == "" {
				s.fault("misfire", "must be deliver, skip or coalesce")
			}
		case "dead_retention":
			t.DeadRetention = s.span("dead_retention", time.Minute, tasks.MaxAhead)
		case "keep_finished":
			t.KeepFinished = s.span("keep_finished", 0, tasks.MaxKeepFinished)
		case "count_crashes":
			t.CountCrashes = s.boolean("count_crashes")
		case "concurrency_per_group":
			t.ConcurrencyPerGroup = s.integer("concurrency_per_group", 0, tasks.MaxPerGroup)
		case "on_dead":
			s.onDead(&t.OnDead)
		case "links":
			t.Links = s.texts("links.")
		case "task_delivery":
			t.TaskDelivery = s.boolean("task_delivery")
		case "paused":
			t.Paused = s.boolean("paused")
		default:
			s.unknown(key)
		}
	}
}

func (s *scanner) onDead(d *tasks.OnDead) {
	s.within = "on_dead."
	for key := range s.object("") {
		switch string(key) {
		case "topic":
			d.Topic = s.str("topic")
		case "delay":
			d.Delay = s.span("delay", 0, tasks.MaxAhead)
		default:
			s.unknown(key)
		}
	}
	if s.err == nil && d.Topic == "" && len(s.faults) == 0 {
		s.fault("topic", "must be given")
	}
	s.within = ""
}

func (s *scanner) rate(r *tasks.Rate) {
	s.within = "rate."
	for key := range s.object("") {
		switch string(key) {
		case "per_second":
			r.PerSecond = s.number64("per_second", 0.001, 1_000_000)
		case "burst":
			r.Burst = s.integer("burst", 1, 1_000_000)
		default:
			s.unknown(key)
		}
	}
	if s.err == nil && r.PerSecond == 0 && len(s.faults) == 0 {
		s.fault("per_second", "must be given")
	}
	s.within = ""
}

func (s *scanner) retry(r *tasks.Retry, within string) {
	const longest = 30 * day
	s.within = within + "retry."
	for key := range s.object("") {
		switch string(key) {
		case "max_attempts":
			r.MaxAttempts = s.integer("max_attempts", 1, tasks.MaxRetryAttempts)
		case "max_age":
			r.MaxAge = s.span("max_age", time.Second, tasks.MaxAhead)
		case "min_backoff":
			r.MinBackoff = s.span("min_backoff", time.Millisecond, day)
		case "max_backoff":
			r.MaxBackoff = s.span("max_backoff", time.Millisecond, longest)
		default:
			s.unknown(key)
		}
	}
	s.within = ""
}

type topicReply struct {
	ETag string `header:"ETag" doc:"Names the revision of the settings, for If-Match."`
	Body Topic
}

func replyTopic(t *task.Topic) *topicReply {
	return &topicReply{ETag: tagOfTopic(t), Body: wireTopic(t)}
}

func tagOfTopic(t *task.Topic) string { return `"` + strconv.FormatInt(t.Revision, 10) + `"` }

type listTopicsInput struct {
	ScopeInput
	Search string `query:"search" maxLength:"128" doc:"Only topics whose names have this part, in whatever case."`
	Sort   string `query:"sort" enum:"name,worst,late,failed,dead,ready,pending,paused" doc:"What comes first. worst: topics that are late, then those that fail, then those with dead tasks, then those that are paused. late: the oldest ready task. failed: most attempts that failed in the last 5 minutes. dead, ready, pending: most such tasks. paused: those that are. Default: name."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"1000" doc:"Topics a page. A page of large settings ends earlier."`
	Cursor string `query:"cursor" maxLength:"1024" doc:"The next_cursor of the page before."`
}

// topics answers GET /v1/topics.
func (s *Server) topics(ctx context.Context, in *listTopicsInput) (*reply[TopicList], error) {
	q := tasks.TopicQuery{
		Search: in.Search, Sort: tasks.TopicSort(in.Sort), Limit: in.Limit, Cursor: in.Cursor, Allows: tasks.GrantOf(ctx).Allows,
	}
	if in.ofNode() {
		page, err := s.scheduler.ListTopics(q)
		return &reply[TopicList]{wireTopicList(&page, s.ownReach())}, err
	}
	page, reach, err := s.scheduler.FleetTopics(ctx, q)
	return &reply[TopicList]{wireTopicList(&page, wireReach(&reach))}, err
}

func wireTopicList(page *tasks.TopicPage, reach Reach) TopicList {
	return TopicList{reach, page.Matched, wireTopics(page.Topics), page.NextCursor}
}

// TopicAnswer is a topic with the nodes that its figures are of.
type TopicAnswer struct {
	Topic
	Reach
}

type topicAnswerReply struct {
	ETag string `header:"ETag" doc:"Names the revision of the settings, for If-Match."`
	Body TopicAnswer
}

type getTopicInput struct {
	ScopeInput
	Topic string `path:"topic" doc:"Name of the topic."`
}

// topic answers GET /v1/topics/{topic}.
func (s *Server) topic(ctx context.Context, in *getTopicInput) (*topicAnswerReply, error) {
	t, reach, err := s.topicOf(ctx, in)
	if err != nil {
		return nil, err
	}
	only := replyTopic(&t)
	return &topicAnswerReply{only.ETag, TopicAnswer{only.Body, reach}}, nil
}

func (s *Server) topicOf(ctx context.Context, in *getTopicInput) (task.Topic, Reach, error) {
	if in.ofNode() {
		t, err := s.scheduler.Topic(in.Topic)
		return t, s.ownReach(), err
	}
	t, reach, err := s.scheduler.FleetTopic(ctx, in.Topic)
	return t, wireReach(&reach), err
}

type patchTopicInput struct {
	request
	Topic       string `path:"topic" doc:"Name of the topic."`
	IfMatch     string `header:"If-Match" maxLength:"64" doc:"Set only if the settings have this ETag; * means that there are some."`
	IfNoneMatch string `header:"If-None-Match" enum:"*" doc:"Set only if no settings are set."`
}

type replaceTopicInput struct {
	request
	Topic       string `path:"topic" doc:"Name of the topic."`
	IfMatch     string `header:"If-Match" maxLength:"64" doc:"Set only if the settings have this ETag; * means that there are some."`
	IfNoneMatch string `header:"If-None-Match" enum:"*" doc:"Set only if no settings are set."`
	Replace     bool   `query:"replace" doc:"Also if that drops a way of delivery of which tasks wait."`
}

// keepsDelivery refuses settings without a way of delivery, which would make the topic's tasks wait
// for receivers, while the topic has a way and tasks. It returns the revision that the settings
// must still have.
func (s *Server) keepsDelivery(ctx context.Context, topic string, revision int64) (int64, error) {
	t, err := s.scheduler.Topic(topic)
	if err != nil || t.Revision == 0 || t.Settings.Kind == tasks.Pull || t.Settings.Kind == tasks.Handler {
		return revision, nil
	}
	if revision < 0 {
		revision = t.Revision
	}
	switch used, err := s.scheduler.TopicInUse(ctx, topic); {
	case err != nil:
		return 0, err
	case used:
		return 0, dropsDelivery.with("the topic's tasks are not pulled, and some wait")
	}
	return revision, nil
}

// putTopic answers PUT /v1/topics/{topic}.
func (s *Server) putTopic(ctx context.Context, in *replaceTopicInput) (*topicReply, error) {
	body, err := jsonBody(in.gin)
	if err != nil {
		return nil, err
	}
	var set tasks.TopicSettings
	body.settings(&set)
	if err := body.done(); err != nil {
		return nil, err
	}
	revision, err := s.ifRevision(in.Topic, in.IfMatch, in.IfNoneMatch)
	if err == nil && !in.Replace && set.Kind == "" {
		revision, err = s.keepsDelivery(ctx, in.Topic, revision)
	}
	if err != nil {
		return nil, err
	}
	before := s.knownTopic(ctx, in.Topic)
	t, err := s.scheduler.SetTopic(ctx, in.Topic, set, revision)
	s.recordSettings(in.gin, tasks.AuditEntry{Verb: "set-topic", Topic: in.Topic}, before, &t, err)
	if err != nil {
		return nil, err
	}
	return replyTopic(&t), nil
}

// ifRevision returns the revision that the settings must have: -1 for any, 0 if none may be set
// yet.
func (s *Server) ifRevision(topic, ifMatch, ifNoneMatch string) (int64, error) {
	switch {
	case ifMatch != "" && ifNoneMatch != "":
		return 0, invalidField("If-Match", "must not be given together with If-None-Match")
	case ifNoneMatch != "":
		return 0, nil
	case ifMatch == "":
		return -1, nil
	case ifMatch == "*":
		t, err := s.scheduler.Topic(topic)
		if err == nil && t.Revision > 0 {
			return t.Revision, nil
		}
		return 0, changed.with("the topic has no settings")
	}
	tag, opened := strings.CutPrefix(ifMatch, `"`)
	tag, closed := strings.CutSuffix(tag, `"`)
	revision, err := strconv.ParseInt(tag, 10, 64)
	if !opened || !closed || err != nil || revision < 0 {
		return 0, invalidField("If-Match", "must be the ETag of an answer, or *")
	}
	return revision, nil
}

type deleteTopicInput struct {
	request
	Topic   string `path:"topic" doc:"Name of the topic."`
	Force   bool   `query:"force" doc:"Make the topic's tasks dead first."`
	IfMatch string `header:"If-Match" maxLength:"64" doc:"Forget only settings that have this ETag."`
}

// deleteTopic answers DELETE /v1/topics/{topic}.
func (s *Server) deleteTopic(ctx context.Context, in *deleteTopicInput) (*struct{}, error) {
	revision, err := s.ifRevision(in.Topic, in.IfMatch, "")
	if err != nil {
		return nil, err
	}
	before := ""
	if t := s.knownTopic(ctx, in.Topic); t != nil {
		before = auditText(settingsOf(t))
	}
	if !in.Force {
		err := s.scheduler.DeleteTopic(ctx, in.Topic, revision)
		s.record(in.gin, tasks.AuditEntry{Verb: "delete-topic", Topic: in.Topic, Before: before}, err)
		return nil, err
	}
	defer withoutDeadline(in.gin)()
	done, err := s.scheduler.KillTopic(ctx, in.Topic, revision)
	s.record(in.gin, tasks.AuditEntry{Verb: "delete-topic", Topic: in.Topic, Count: int64(done.Killed), Before: before}, err)
	if err != nil {
		return nil, withDone(err, done.Killed)
	}
	return nil, nil
}

// pause answers POST /v1/topics/{topic}/pause and /resume.
func (s *Server) pause(on bool) func(context.Context, *topicInput) (*struct{}, error) {
	return func(ctx context.Context, in *topicInput) (*struct{}, error) {
		verb := "resume"
		if on {
			verb = "pause"
		}
		_, err := s.changeSettings(ctx, in.gin, tasks.AuditEntry{Verb: verb, Topic: in.Topic}, -1, func(set *tasks.TopicSettings) error {
			set.Paused = on
			return nil
		})
		return nil, err
	}
}
