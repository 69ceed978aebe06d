package httpapi

import (
	"context"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// History reports what has happened, by the minute or by the hour.
type History struct {
	Reach
	Topic  string         `json:"topic,omitempty" doc:"Left out: all topics together."`
	Since  string         `json:"since" format:"date-time" doc:"When the first point begins: nothing is known of what was before. Without points it is now."`
	Step   duration       `json:"step" doc:"Length of a point: 1m or 1h."`
	Unread string         `json:"unread,omitempty" doc:"Why what the ledger keeps could not be read. Then the answer has only what the nodes in covers have in memory: their last hour, with a step of 1h their last two."`
	Points []HistoryPoint `json:"points" nullable:"false" doc:"The oldest first, without gaps. The last one is under way, unless to is in the past."`
	Marks  []HistoryMark  `json:"marks" nullable:"false" doc:"What has happened besides, the earliest first; at most the latest 500."`
}

// HistoryPoint is what has happened within a minute or an hour.
type HistoryPoint struct {
	At        string        `json:"at" format:"date-time" doc:"When it began, by the clocks of the nodes."`
	Nodes     int           `json:"nodes" doc:"Of how many nodes the point is, those included that are gone since. 0: nothing is known. Fewer than in another point: a node was down, could not keep its figures, or does not know those of the topic."`
	Scheduled int64         `json:"scheduled"`
	Delivered int64         `json:"delivered" doc:"Acknowledged."`
	Failed    int64         `json:"failed" doc:"Attempts, of any cause."`
	Dead      int64         `json:"dead" doc:"Tasks that died."`
	Cancelled int64         `json:"cancelled"`
	Lateness  PointLateness `json:"lateness" doc:"Of the first attempts that began."`
}

// PointLateness sums up how late first attempts began within a point.
type PointLateness struct {
	Count int64    `json:"count"`
	P50   duration `json:"p50" doc:"Half of them were at most this late: the upper bound of a bucket, or max if that is less."`
	P99   duration `json:"p99"`
	Max   duration `json:"max" doc:"Of one topic: the upper bound of a bucket."`
}

// HistoryMark is something that has happened to a node, the ledger or a topic.
type HistoryMark struct {
	At    string `json:"at" format:"date-time"`
	Until string `json:"until,omitempty" format:"date-time" doc:"When it was over. Left out for what has no length."`
	Kind  string `json:"kind" enum:"node_started,node_stopped,node_down,node_up,ledger_outage,paused,resumed,settings" doc:"node_down: other nodes heard no heartbeat any more. ledger_outage: the ledger did not answer the node."`
	Node  string `json:"node,omitempty"`
	Topic string `json:"topic,omitempty"`
	By    string `json:"by,omitempty" doc:"Name of the token of the caller whose act it was."`
	Text  string `json:"text,omitempty" doc:"Of node_started the version. Of settings which were changed."`
}

type historyInput struct {
	ScopeInput
	Topic   string `query:"topic" maxLength:"128" doc:"Of this topic alone. Default: all topics together."`
	Minutes int    `query:"minutes" minimum:"1" maximum:"60" default:"60" doc:"Without from: how many steps to show before the one under way."`
	From    string `query:"from" format:"date-time" doc:"RFC 3339. At most 25 hours before to with a step of 1m, and 31 days with one of 1h."`
	To      string `query:"to" format:"date-time" doc:"RFC 3339, not included. Default: now, with what is under way."`
	Step    string `query:"step" enum:"1m,1h" default:"1m" doc:"Length of a point."`
}

// query returns what is asked for. Errors: ErrInvalid.
func (in *historyInput) query() (q tasks.PastQuery, err error) {
	q = tasks.PastQuery{Topic: in.Topic, Last: time.Duration(in.Minutes) * time.Minute}
	if in.Step == "1h" {
		q.Step, q.Last = time.Hour, time.Duration(in.Minutes)*time.Hour
	}
	err = instants([]bound{{"from", in.From, &q.From}, {"to", in.To, &q.To}})
	return q, err
}

// history answers GET /v1/history.
func (s *Server) history(ctx context.Context, in *historyInput) (*reply[History], error) {
	q, err := in.query()
	if err != nil {
		return nil, err
	}
	if in.ofNode() {
		p, err := s.scheduler.Past(ctx, q)
		if err != nil {
			return nil, err
		}
		return &reply[History]{wireHistory(&p, s.ownReach())}, nil
	}
	p, reach, err := s.scheduler.FleetPast(ctx, q)
	if err != nil {
		return nil, err
	}
	return &reply[History]{wireHistory(&p, wireReach(&reach))}, nil
}

func wireHistory(p *tasks.Past, reach Reach) History {
	since := p.Query.To
	if len(p.Points) > 0 {
		since = p.Points[0].At
	}
	wire := History{Reach: reach, Topic: p.Query.Topic, Since: formatInstant(since), Step: duration(p.Query.Step),
		Points: make([]HistoryPoint, len(p.Points)), Marks: make([]HistoryMark, len(p.Marks))}
	if p.Unread != nil {
		wire.Unread = unread(p.Unread)
	}
	for i := range p.Points {
		m := &p.Points[i]
		late := wireRecent(&m.Lateness)
		wire.Points[i] = HistoryPoint{formatInstant(m.At), m.Nodes, m.Scheduled, m.Delivered, m.Failed, m.Died, m.Cancelled, PointLateness(late)}
	}
	for i, m := range p.Marks {
		wire.Marks[i] = HistoryMark{At: formatInstant(m.At), Kind: string(m.Kind), Node: m.Node, Topic: m.Topic, By: m.By, Text: m.Text}
		if !m.Until.IsZero() {
			wire.Marks[i].Until = formatInstant(m.Until)
		}
	}
	return wire
}

// maxUnread bounds the reason in unread, in bytes.
const maxUnread = 200

// unread says why the ledger could not be read.
func unread(err error) string {
	text := err.Error()
	return "the ledger does not tell what it keeps: " + strings.ToValidUTF8(text[:min(maxUnread, len(text))], "")
}
