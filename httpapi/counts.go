package httpapi

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// StateCounts counts tasks by their state.
type StateCounts struct {
	Pending    int `json:"pending" doc:"Tasks that wait for their time, those in retrying and held among them."`
	Retrying   int `json:"retrying" doc:"Pending tasks of which an attempt was made."`
	Held       int `json:"held" doc:"Pending tasks whose countdown is held."`
	Ready      int `json:"ready" doc:"Tasks that are due and wait for their receiver."`
	Delivering int `json:"delivering" doc:"Tasks that are being delivered."`
	Dead       int `json:"dead" doc:"Dead tasks. They are counted with the state dead."`
	Finished   int `json:"finished" doc:"Finished tasks that are kept. They are counted with the state finished."`
}

// TaskCounts says how many tasks a list would have.
type TaskCounts struct {
	Reach
	Total    StateCounts       `json:"total" doc:"Of all topics."`
	Topics   []TopicTaskCounts `json:"topics" nullable:"false" maxItems:"100" doc:"By topic, those of most tasks first."`
	LeftOut  int               `json:"left_out" doc:"Tasks in total that none of topics counts."`
	LookedAt int               `json:"looked_at" doc:"About how many tasks were looked at."`
	Of       int               `json:"of" doc:"Of about how many, those of the nodes in missing not among them."`
	Complete bool              `json:"complete" doc:"All were counted. false: there are at least as many, since the time was over before all were looked at, or a node is missing."`
}

// TopicTaskCounts counts the tasks of one topic.
type TopicTaskCounts struct {
	Topic string `json:"topic"`
	StateCounts
}

type countInput struct {
	ScopeInput
	Topic string `query:"topic" maxLength:"128" doc:"Only tasks of this topic."`
	Group string `query:"group" maxLength:"128" doc:"Only tasks of this group."`
	State string `query:"state" enum:"pending,retrying,held,ready,delivering,dead,finished" doc:"Only tasks in this state. Without it, all but the dead and the finished. Dead and finished need no topic."`
	Node  string `query:"node" maxLength:"128" doc:"Only tasks that the node of this name has. Not with scope=node."`
	TextFilter
	DueFilter
	DiedFilter
	WithinInput
	Limit int `query:"limit" minimum:"0" maximum:"100" default:"100" doc:"Tell of so many topics at most."`
}

// WithinInput bounds how long an answer takes. It is exported for huma, as ScopeInput is.
type WithinInput struct {
	Within string `query:"within" maxLength:"64" doc:"Look for so long at most, 50ms to 10s. Default 2s. Other nodes have half a second more to answer."`
}

// span returns the time; 0: none is given.
func (in *WithinInput) span() (time.Duration, error) {
	if in.Within == "" {
		return 0, nil
	}
	d, err := parseSpan(in.Within)
	if err != nil {
		return 0, invalidField("within", err.Error())
	}
	if d == 0 {
		return 0, invalidField("within", "must be from 50ms to 10s")
	}
	return d, nil
}

// counts answers GET /v1/counts.
func (s *Server) counts(ctx context.Context, in *countInput) (*reply[TaskCounts], error) {
	state, _ := tasks.ParseState(in.State)
	q := tasks.Query{Topic: in.Topic, Group: in.Group, State: state, Node: in.Node, Reason: tasks.Reason(in.Reason)}
	in.TextFilter.add(&q)
	if err := instants(append(in.DueFilter.bounds(&q), in.DiedFilter.bounds(&q)...)); err != nil {
		return nil, err
	}
	within, err := in.span()
	if err != nil {
		return nil, err
	}
	if in.ofNode() {
		c, err := s.scheduler.Count(ctx, q, within)
		return &reply[TaskCounts]{wireTaskCounts(&c, s.ownReach(), in.Limit)}, err
	}
	c, reach, err := s.scheduler.FleetCount(ctx, q, within)
	return &reply[TaskCounts]{wireTaskCounts(&c, wireReach(&reach), in.Limit)}, err
}

func wireTaskCounts(c *tasks.TaskCounts, reach Reach, limit int) TaskCounts {
	wire := TaskCounts{
		Reach: reach, Total: StateCounts(c.Total), Topics: []TopicTaskCounts{}, LeftOut: c.LeftOut, LookedAt: c.LookedAt, Of: c.Of, Complete: c.Complete,
	}
	for i := range c.Topics {
		t := &c.Topics[i]
		if i >= limit {
			wire.LeftOut += t.All()
			continue
		}
		wire.Topics = append(wire.Topics, TopicTaskCounts{t.Topic, StateCounts(t.StateCount)})
	}
	return wire
}
