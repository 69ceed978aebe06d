package httpapi

import (
	"context"

	"github.com/lapsehq/lapse/tasks"
)

// Diagnosis is the answer of GET /v1/diagnosis.
type Diagnosis struct {
	Reach
	At         string    `json:"at" format:"date-time" doc:"When the server looked."`
	Headline   string    `json:"headline" doc:"All that is grave in one sentence, or that nothing is late."`
	Fleet      string    `json:"fleet" doc:"The same of the ledger and the nodes alone."`
	Troubles   []Trouble `json:"troubles" nullable:"false" doc:"Causes before consequences: the ledger, nodes, topics, and then what is no trouble yet, or meant. Of topics, those of the 20 worst."`
	MoreTopics bool      `json:"more_topics" doc:"There are further topics, and the trouble of the last of those that were looked at is grave."`
}

// Trouble is one thing that is wrong, or that a reader of figures must know.
type Trouble struct {
	Kind   string `json:"kind" enum:"ledger,refusing,cut_off,unknown,silent,unheard,spool,adopted,undeliverable,late,failing,ahead,replaying,draining,dead,paused" doc:"ledger: it does not answer. refusing: it takes no new tasks. cut_off: a node is cut off from the ledger, and may have lost its shards. unknown: nothing is known of a node, since the ledger does not answer. silent: a node sends no heartbeat, and its tasks wait. unheard: a node does not answer, or its figures are not complete. spool: a former spool of a node is missing. adopted: a node is down, and others have its tasks. undeliverable, late, failing, dead, paused: of a topic. ahead: in the next day more falls due than receivers have shown to deliver in time. replaying, draining: of a node."`
	Grave  bool   `json:"grave" doc:"Tasks are late or fail because of it, or would be with the next fault, or it is not known whether they are."`
	Node   string `json:"node,omitempty" doc:"The node that it is about. Left out if there is none, or if that is not known."`
	Topic  string `json:"topic,omitempty" doc:"The topic that it is about. Left out if there is none."`
	Since  string `json:"since,omitempty" format:"date-time" doc:"Left out if that is not known."`
	Text   string `json:"text" doc:"What is wrong."`
	Detail string `json:"detail,omitempty" doc:"Why, or what it means, as far as that is known."`
}

// diagnosis answers GET /v1/diagnosis.
func (s *Server) diagnosis(ctx context.Context, _ *struct{}) (*reply[Diagnosis], error) {
	d, reach, err := s.scheduler.Diagnose(ctx)
	if err != nil {
		return nil, err
	}
	return &reply[Diagnosis]{Diagnosis{
		Reach: wireReach(&reach), At: formatInstant(d.At), Headline: d.Headline, Fleet: d.Fleet,
		Troubles: append([]Trouble{}, wireTroubles(d.Troubles)...), MoreTopics: d.MoreTopics,
	}}, nil
}

func wireTroubles(troubles []tasks.Trouble) []Trouble {
	var wire []Trouble
	for _, t := range troubles {
		wire = append(wire, Trouble{string(t.Kind), t.Grave, t.Node, t.Topic, formatInstant(t.Since), t.Text, t.Detail})
	}
	return wire
}
