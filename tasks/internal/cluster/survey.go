package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// SurveyMethod has a node look at many of its tasks.
var SurveyMethod = Method[query.Survey, surveyReply]{Name: "survey"}

type surveyReply struct {
	query.SurveyPart
	reading
}

func (s *Cluster) handleSurvey(ctx context.Context, _ string, q query.Survey) (a surveyReply, err error) {
	// Reasons say themselves whether all dead tasks were read.
	a.Reads = !s.engine.IsReplayed() && q.Kind != query.SurveyReasons
	part, err := s.survey(ctx, q)
	a.SurveyPart = part.Bounded()
	return a, err
}

// surveysAtOnce bounds how many surveys a node carries out at the same time, those for other nodes
// among them.
const surveysAtOnce = 4

// turn waits until this node may carry a survey out, and returns what ends it; nil if the time
// within which it looks, 0 meaning surveySlack, was over before that. left is what is left of it.
// Errors: why ctx has ended.
func (s *Cluster) turn(ctx context.Context, within time.Duration) (left time.Duration, end func(), err error) {
	began, timer := time.Now(), time.NewTimer(cmp.Or(within, surveySlack))
	defer timer.Stop()
	select {
	case s.Figures.surveying <- struct{}{}:
	case <-timer.C:
		return 0, nil, nil
	case <-ctx.Done():
		return 0, nil, context.Cause(ctx)
	}
	if within > 0 {
		within = max(within-time.Since(began), task.MinWithin)
	}
	return within, func() { <-s.Figures.surveying }, nil
}

// survey carries a survey out when it is its turn. One whose time is over before that has seen
// nothing. Errors: as of engine.Survey.
func (s *Cluster) survey(ctx context.Context, q query.Survey) (query.SurveyPart, error) {
	left, end, err := s.turn(ctx, q.Within)
	if end == nil {
		return query.Unseen(q.Kind), err
	}
	defer end()
	q.Within = left
	return engine.Survey(ctx, s.engine, &q)
}

// ownSurvey is what this node has seen, and why it has seen no more.
type ownSurvey struct {
	query.SurveyPart
	err error
}

// NodeSurvey is a survey of this node alone. However many callers ask the same, the tasks are
// looked at about once a second, and no more once all of them have left. Errors: ErrClosed,
// ErrUnavailable; why ctx has ended.
func (s *Cluster) NodeSurvey(ctx context.Context, q *query.Survey) (query.SurveyPart, error) {
	own, err := s.ownSurvey(ctx, q)
	if err != nil {
		return query.SurveyPart{}, err
	}
	return query.MergeSurvey([]query.SurveyPart{own}, true), nil
}

func (s *Cluster) ownSurvey(ctx context.Context, q *query.Survey) (query.SurveyPart, error) {
	key, err := json.Marshal(q)
	if err != nil {
		return query.SurveyPart{}, err
	}
	asked := *q
	found, err := s.Figures.gathered.doWanted(ctx, s.engine.Life.Context, "own "+SurveyMethod.Name+string(key), func(ctx context.Context) any {
		part, err := s.survey(ctx, asked)
		return ownSurvey{part, err}
	})
	if err != nil {
		return query.SurveyPart{}, err
	}
	own := found.(ownSurvey)
	if own.err != nil && s.engine.IsClosing() {
		own.err = task.ErrClosed // and not that its context has ended
	}
	return own.SurveyPart, own.err
}

// surveySlack is how much longer a node waits for the answers of others than these look.
const surveySlack = GatherWithin / 2

// FleetSurvey is a survey of all nodes, or of q.List.Node alone. Errors: as of NodeSurvey.
func (s *Cluster) FleetSurvey(ctx context.Context, q *query.Survey) (query.SurveyPart, task.Reach, error) {
	ask, own := *q, q.List.Node == "" || q.List.Node == s.NodeName()
	var some []string // other nodes; nil: all
	if q.List.Node != "" {
		some, ask.List.Node = []string{q.List.Node}, ""
	}
	here := make(chan ownSurvey, 1)
	go func() {
		var seen ownSurvey
		if own {
			seen.SurveyPart, seen.err = s.ownSurvey(ctx, &ask)
		}
		here <- seen
	}()
	g, failed := gatherFor(ctx, s, max(GatherWithin, q.Within+surveySlack), SurveyMethod, ask, some...)
	seen := <-here
	if err := errors.Join(failed, seen.err); err != nil {
		return query.SurveyPart{}, task.Reach{}, err
	}
	parts, reach := []query.SurveyPart{seen.SurveyPart}, g.reach
	for i := range g.answers {
		parts = append(parts, g.answers[i].reply.SurveyPart)
	}
	if !own {
		reach = withoutNode(reach, s.NodeName())
	}
	return query.MergeSurvey(parts, len(reach.Missing) == 0), reach, nil
}

// withoutNode is a Reach without a node that was not asked.
func withoutNode(r task.Reach, node string) (others task.Reach) {
	for _, name := range r.Nodes {
		if name != node {
			others.Nodes = append(others.Nodes, name)
		}
	}
	for _, m := range r.Missing {
		if m.Node != node {
			others.Missing = append(others.Missing, m)
		}
	}
	return others
}
