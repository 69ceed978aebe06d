package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
)

// verbs are all questions that a node answers.
func verbs() map[string]answerer {
	table := make(map[string]answerer)
	add := func(verb string, answer answerer) { table[verb] = answer }
	add(answering(getQuestion, (*Scheduler).answerGet))
	return table
}

var getQuestion = question[idAsk, Task]{verb: "get"}

// An idAsk is about one task. The asker believes that it is kept at that home; 0 if it
// knows only that this node has it.
type idAsk struct {
	ID   string
	Home recovery.Home
}

func (s *Scheduler) answerGet(ctx context.Context, _ string, q idAsk) (Task, error) {
	t, err := s.Get(ctx, q.ID)
	if errors.Is(err, ErrNotFound) {
		err = errNotMine
	}
	return t, err
}
