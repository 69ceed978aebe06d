package httpapi

import (
	"context"

	"github.com/lapsehq/lapse/tasks"
)

// FoundPart is a part of a search.
type FoundPart struct {
	Reach
	Tasks      []FoundTask `json:"tasks" nullable:"false" doc:"Those that match best first, then by id. In the first part the task whose id is q, if there is one. A task may come again in a later part."`
	Groups     []FoundName `json:"groups" nullable:"false" doc:"Groups of tasks. A group may come again in a later part."`
	Topics     []FoundName `json:"topics" nullable:"false" doc:"In the first part only."`
	NextCursor string      `json:"next_cursor,omitempty" doc:"For the next part. A part that has found nothing may have one. Left out at the end of the search."`
	LookedAt   int         `json:"looked_at" doc:"At about how many tasks the search has looked so far."`
	Of         int         `json:"of" doc:"Of about how many, those of the nodes in missing not among them."`
	Complete   bool        `json:"complete" doc:"true: up to here the search has left nothing out. false: a node was missing in this part or in one before, and what it has may be left out."`
}

// FoundTask is a task whose id has the text in it.
type FoundTask struct {
	Match string `json:"match" enum:"exact,begin,part" doc:"exact: its id is the text. begin: it begins with it, in capital or small letters. part: it has the text in it."`
	Task  Task   `json:"task" doc:"Without payload, headers and attempts."`
}

// FoundName is a group or a topic whose name has the text in it.
type FoundName struct {
	Match string `json:"match" enum:"exact,begin,part" doc:"As for tasks."`
	Name  string `json:"name"`
	Topic string `json:"topic,omitempty" doc:"Of a group: the topic of one of its tasks."`
}

type searchInput struct {
	request
	ScopeInput
	Text   string `query:"q" required:"true" minLength:"1" maxLength:"128" doc:"What the id of a task, or the name of a group or a topic, must have in it, in capital or small letters. 1 to 128 of the characters that these have."`
	Cursor string `query:"cursor" maxLength:"65536" doc:"The next_cursor of the part before, of the same q."`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Find about so many tasks and groups at most, and so many topics."`
	Within string `query:"within" maxLength:"64" doc:"Look for so long at most, 50ms to 10s. Default 1s. Other nodes have half a second more to answer."`
}

// foundName is about how many bytes a name that was found has in an answer, at most.
const foundName = 300

// search answers GET /v1/search.
func (s *Server) search(ctx context.Context, in *searchInput) (*reply[FoundPart], error) {
	within, err := (&WithinInput{in.Within}).span()
	if err != nil {
		return nil, err
	}
	q := tasks.SearchQuery{Text: in.Text, Cursor: in.Cursor, Limit: in.Limit, Within: within}
	if err := s.beginPage(ctx, "too many searches and lists are asked for at once"); err != nil {
		return nil, err
	}
	defer s.endPage()
	var f tasks.Found
	var reach Reach
	if in.ofNode() {
		f, err = s.scheduler.Search(ctx, q)
		reach = s.ownReach()
	} else {
		var all tasks.Reach
		f, all, err = s.scheduler.FleetSearch(ctx, q)
		reach = wireReach(&all)
	}
	if err != nil {
		return nil, err
	}
	part := FoundPart{
		Reach: reach, Tasks: make([]FoundTask, len(f.Tasks)), Groups: wireNames(f.Groups), Topics: wireNames(f.Topics),
		NextCursor: f.Cursor, LookedAt: f.LookedAt, Of: f.Of, Complete: f.Complete,
	}
	size := int64(len(f.Groups)+len(f.Topics)) * foundName
	for i := range f.Tasks {
		t := &f.Tasks[i]
		part.Tasks[i] = FoundTask{t.Match.String(), wireTask(&t.Task, false)}
		size += sizeOf(&t.Task)
	}
	if err := answerOf(in.gin).takeList(size); err != nil {
		return nil, err
	}
	return &reply[FoundPart]{part}, nil
}

func wireNames(names []tasks.FoundName) []FoundName {
	wire := make([]FoundName, len(names))
	for i := range names {
		wire[i] = FoundName{names[i].Match.String(), names[i].Name, names[i].Topic}
	}
	return wire
}
