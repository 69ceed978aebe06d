package query

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A SurveyKind is what a Survey is for.
type SurveyKind string

// The kinds of surveys.
const (
	SurveyReasons SurveyKind = "reasons" // why dead tasks are dead
	SurveyCounts  SurveyKind = "counts"  // how many tasks a list has
)

// A Survey has a node look at many of its tasks, for a bounded time, and say what it has seen and
// how far it has come. A node that is missing is named, and the others answer without it.
type Survey struct {
	Kind   SurveyKind
	List   List          // what is selected; its page is not used
	Within time.Duration `json:",omitempty"` // of counts: for how long a node looks
}

// A SurveyPart is what a node has seen.
type SurveyPart struct {
	Reasons *task.DeadReasons `json:",omitempty"`
	Counts  *task.TaskCounts  `json:",omitempty"`
}

// Unseen is the part of a node that has looked at nothing: it is not complete.
func Unseen(kind SurveyKind) (p SurveyPart) {
	switch kind {
	case SurveyReasons:
		p.Reasons = new(task.DeadReasons)
	case SurveyCounts:
		p.Counts = new(task.TaskCounts)
	}
	return p
}

// How much a node tells another one. It is more than a caller gets, so that those of most tasks in
// all are among them.
const (
	reasonsOfNode = 4 * task.MaxDeadReasons
	topicsOfNode  = 10 * task.MaxCountedTopics
)

// Bounded leaves out of a part what one node does not tell another one.
func (p *SurveyPart) Bounded() SurveyPart { return p.most(reasonsOfNode, topicsOfNode) }

func (p *SurveyPart) most(reasons, topics int) (most SurveyPart) {
	if p.Reasons != nil {
		r := (&task.DeadTally{DeadReasons: *p.Reasons}).Most(reasons)
		most.Reasons = &r
	}
	if p.Counts != nil {
		c := (&task.CountTally{TaskCounts: *p.Counts}).Most(topics)
		most.Counts = &c
	}
	return most
}

// MergeSurvey adds up the parts of nodes, as far as a caller gets them. all: no node is missing.
func MergeSurvey(parts []SurveyPart, all bool) SurveyPart {
	var sum SurveyPart
	reasons, counts := task.DeadTally{DeadReasons: task.DeadReasons{Complete: all}}, task.CountTally{TaskCounts: task.TaskCounts{Complete: all}}
	for i := range parts {
		if r := parts[i].Reasons; r != nil {
			reasons.Add(r)
			sum.Reasons = &reasons.DeadReasons
		}
		if c := parts[i].Counts; c != nil {
			counts.Add(c)
			sum.Counts = &counts.TaskCounts
		}
	}
	return sum.most(task.MaxDeadReasons, task.MaxCountedTopics)
}
