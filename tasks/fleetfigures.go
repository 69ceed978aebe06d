package tasks

import (
	"context"
	"slices"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// What all nodes that share the ledger answer together. Each of these methods takes about
// GatherWithin at most: what has not answered by then is named in Reach.Missing, and the figures
// are those of the others. What other nodes have answered may be a second old, so that a node that
// is polled by many callers asks the others about once a second. So may a node's own part of a
// forecast. At a node without others these methods cost nothing beyond what Stats, Topic,
// ListTopics and Forecast do.

// GatherWithin bounds how long a node waits for the figures of other nodes.
const GatherWithin = cluster.GatherWithin

// FleetStats returns the figures of all nodes, added up: of what is no count, the earliest time and
// the greatest value. Node, At, Readiness, Ways, Took and Relay are those of this node. Topics is
// empty, and Beyond says how many topics a node has at least, where that is more than
// MaxStatsTopics or more than a message takes.
//
// Errors: why ctx has ended.
func (s Admin) FleetStats(ctx context.Context) (Stats, Reach, error) {
	return s.fleetStats(ctx, false)
}

// FleetTotals is FleetStats without Topics: Beyond says how many there are, at least. Errors: as of
// FleetStats.
func (s Admin) FleetTotals(ctx context.Context) (Stats, Reach, error) {
	return s.fleetStats(ctx, true)
}

func (s *Scheduler) fleetStats(ctx context.Context, total bool) (Stats, Reach, error) {
	st, reach, err := s.cluster.FleetStats(ctx, total)
	if err != nil {
		return Stats{}, Reach{}, err
	}
	st.Readiness = s.Readiness()
	return st, reach, nil
}

// OwnReach is the Reach of the figures of this node alone, which Stats, Topic, ListTopics and
// Forecast return. While the node reads its tasks after a start or an adoption it is named in
// Missing, with ErrReplaying: what it has not read does not count yet.
func (s Admin) OwnReach() Reach { return s.cluster.OwnReach() }

// FleetTopic returns a topic as all nodes together have met it. Its settings are those that this
// node knows. Counts are added up, LastError is that of the latest failure, and ConcurrencyNow the
// greatest.
//
// Errors: ErrNoTopic if no node that answers has met it; ErrReplaying; why ctx has ended.
func (s Admin) FleetTopic(ctx context.Context, name string) (TopicInfo, Reach, error) {
	return s.cluster.FleetTopic(ctx, name)
}

// FleetTopics returns a page of the topics that any node has met, each as of FleetTopic. The grant
// of ctx bounds them as q.Allows does. A page ends early where there are many nodes. Pages are no
// snapshot. With a Search or a Sort it takes up to twice GatherWithin: the nodes are asked for the
// figures that sort the topics, and then for the topics of the page. Errors: ErrInvalid; why ctx
// has ended.
func (s Admin) FleetTopics(ctx context.Context, q TopicQuery) (TopicPage, Reach, error) {
	q, err := checkedPage(q)
	if err != nil {
		return TopicPage{}, Reach{}, err
	}
	granted, allows := GrantOf(ctx), q.Allows
	q.Allows = func(name string) bool { return granted.Allows(name) && (allows == nil || allows(name)) }
	return s.cluster.FleetTopics(ctx, q)
}

// FleetForecast is Forecast of the tasks of all nodes. Complete is false while a node replays or is
// missing. It is judged by the best minute of the last day, as the ledger and the nodes know it,
// which is looked for about once a minute: then it takes up to twice GatherWithin longer.
//
// Errors: ErrInvalid, ErrNotGranted, ErrClosed, or why ctx has ended.
func (s Admin) FleetForecast(ctx context.Context, o Outlook) (Forecast, Reach, error) {
	if o.Topic != "" {
		if err := engine.Granted(ctx, o.Topic); err != nil {
			return Forecast{}, Reach{}, err
		}
	}
	return s.cluster.FleetForecast(ctx, o)
}

// FleetWaves is Waves of the tasks of all nodes. What has ended at nodes that do not answer is as
// the ledger keeps it: the last minute of one that was killed is lost. Therefore Since is at least
// when the last of those that are dead was heard.
//
// Errors: as of Waves.
func (s Admin) FleetWaves(ctx context.Context, q WaveQuery) (Wave, Reach, error) {
	q, err := q.Check()
	if err == nil && q.Topic != "" {
		err = engine.Granted(ctx, q.Topic)
	}
	if err != nil {
		return Wave{}, Reach{}, err
	}
	return s.cluster.FleetWaves(ctx, q)
}

// FleetPast returns what has happened, by the minute or the hour, in all topics or one, as the
// ledger keeps it and as the nodes that answer have it in memory. Each point says of how many nodes
// it is: what a node has counted that is dead or was restarted stays. A node whose clock differs
// counts by its own. The last minute of a node that was killed is lost. Of a topic, a node knows
// those minutes in which it was among the 32 topics with most activity.
//
// Errors: ErrInvalid, ErrNotGranted, or why ctx has ended.
func (s Admin) FleetPast(ctx context.Context, q PastQuery) (Past, Reach, error) {
	q, err := s.checkPast(ctx, q)
	if err != nil {
		return Past{}, Reach{}, err
	}
	p, reach, err := s.cluster.FleetPast(ctx, q)
	p.Marks = grantedMarks(ctx, p.Marks)
	return p, reach, err
}

// Past is FleetPast of this node alone: what it has in memory, of the last hour. If no other node
// shares its ledger, it is what the ledger keeps as well. Errors: as of FleetPast.
func (s Admin) Past(ctx context.Context, q PastQuery) (Past, error) {
	q, err := s.checkPast(ctx, q)
	if err != nil {
		return Past{}, err
	}
	p, err := s.cluster.NodePast(ctx, q)
	p.Marks = grantedMarks(ctx, p.Marks)
	return p, err
}

// grantedMarks leaves out the marks of topics that the caller may not use.
func grantedMarks(ctx context.Context, marks []Mark) []Mark {
	return slices.DeleteFunc(marks, func(m Mark) bool { return m.Topic != "" && !task.AnyMatches(task.PatternsOf(ctx), m.Topic) })
}

// checkPast refuses a query of all topics from a caller that may use some.
func (s *Scheduler) checkPast(ctx context.Context, q PastQuery) (PastQuery, error) {
	if err := engine.Granted(ctx, q.Topic); err != nil {
		return q, err
	}
	return q.Checked(s.engine.Config.Clock())
}

// MaxDeadReasons bounds how many reasons a DeadReasons tells of.
const MaxDeadReasons = task.MaxDeadReasons

// FleetDeadReasons says why dead tasks are dead: those at all nodes that a query selects, at most
// MaxDeadReasons reasons, those of most tasks first. It looks at as many tasks as a page of List
// does, the longest dead first, and says whether these are all. Topic may be empty, for the topics
// that the grant of ctx allows; Limit and Cursor are not used, and State may be Dead only.
//
// Errors: ErrInvalid, ErrNotGranted, ErrUnavailable, ErrClosed; why ctx has ended.
func (s Admin) FleetDeadReasons(ctx context.Context, q Query) (DeadReasons, Reach, error) {
	ask, err := checkReasons(ctx, q)
	if err != nil {
		return DeadReasons{}, Reach{}, err
	}
	p, reach, err := s.cluster.FleetSurvey(ctx, &query.Survey{Kind: query.SurveyReasons, List: ask})
	if err != nil {
		return DeadReasons{}, reach, err
	}
	return *p.Reasons, reach, nil
}

// DeadReasons is FleetDeadReasons of this node alone. Errors: as of FleetDeadReasons.
func (s Admin) DeadReasons(ctx context.Context, q Query) (DeadReasons, error) {
	ask, err := checkReasons(ctx, q)
	if err != nil {
		return DeadReasons{}, err
	}
	p, err := s.cluster.NodeSurvey(ctx, &query.Survey{Kind: query.SurveyReasons, List: ask})
	if err != nil {
		return DeadReasons{}, err
	}
	return *p.Reasons, nil
}

// checkReasons returns what a query about the reasons of dead tasks asks for.
func checkReasons(ctx context.Context, q Query) (query.List, error) {
	if q.State != 0 && q.State != Dead {
		return query.List{}, task.Invalid("state", "must be dead, or be left out")
	}
	q.State, q.Brief = Dead, false
	return checkSelection(ctx, &q)
}

// What becomes of a node while a FleetSubscription is open.
const (
	NodeCovered = task.NodeCovered
	NodeMissing = task.NodeMissing
	NodeLeft    = task.NodeLeft
)

// FleetSubscribe is Subscribe at all nodes that share the ledger. The subscription begins with what
// happens after FleetSubscribe has returned: it waits until the nodes that live have answered, and
// GatherWithin at most. One that has not is reported as NodeMissing. The filter holds for each
// node, its Buffer for this one: at others up to 2,048 events wait. The caller closes the
// subscription. At a node without others it is what Subscribe is.
//
// Errors: as of Subscribe; why ctx has ended.
func (s Admin) FleetSubscribe(ctx context.Context, f EventFilter) (*FleetSubscription, error) {
	return s.cluster.FleetSubscribe(ctx, f)
}
