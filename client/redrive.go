package client

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Redrive brings dead tasks back slowly, and leaves a topic whose first ones fail again.
type Redrive struct {
	// Query selects the tasks; without a Topic those of all topics. DiedTo is the time at which
	// the redrive begins, unless it is given: what dies again stays dead.
	Query Query
	// Rate is how many tasks a second come back at most, 1 to 1,000.
	Rate int
	// Try is how many tasks of each topic come back first, up to 100; 0: none. Where all of them
	// fail again, or none was attempted within TryWithin, the others of the topic stay dead.
	Try       int
	TryWithin time.Duration // 0: a minute
	// Progress is called after each step; nil: not at all.
	Progress func(RedrivenTopic)
}

// RedrivenTopic says how far a redrive has come with a topic.
type RedrivenTopic struct {
	Topic    string `json:"topic"`
	Requeued int    `json:"requeued"`
	Of       int    `json:"of"`                // so many were selected at the beginning
	Stopped  string `json:"stopped,omitempty"` // why the others stay dead
	Over     bool   `json:"over"`
}

// Redrive requeues the dead tasks that r selects, topic by topic, those with most first, up to 100
// topics. It drives the server piece by piece: a caller that ends leaves the other tasks dead, and
// may begin again. It returns what has become of each topic, also beside an error.
//
// Errors: ErrInvalid, ErrForbidden, ErrUnavailable, ErrUnknown, ErrUnreachable; why ctx has ended.
func (c *Client) Redrive(ctx context.Context, r Redrive) (all []RedrivenTopic, err error) {
	if r.Rate < 1 || r.Rate > 1000 {
		return nil, fmt.Errorf("%w: Rate must be from 1 to 1000", ErrInvalid)
	}
	if r.Try < 0 || r.Try > 100 {
		return nil, fmt.Errorf("%w: Try must be from 0 to 100", ErrInvalid)
	}
	if r.TryWithin == 0 {
		r.TryWithin = time.Minute
	}
	if r.Query.DiedTo.IsZero() {
		r.Query.DiedTo = time.Now().Add(time.Millisecond).UTC()
	}
	q := r.Query
	q.State, q.Limit = Dead, 0
	counts, err := c.Count(ctx, q, 10*time.Second)
	if err != nil {
		return nil, err
	}
	for i := range counts.Topics {
		t := RedrivenTopic{Topic: counts.Topics[i].Topic, Of: counts.Topics[i].Dead}
		err := c.redriveTopic(ctx, &r, &t)
		if all = append(all, t); err != nil {
			return all, err
		}
	}
	return all, nil
}

func (c *Client) redriveTopic(ctx context.Context, r *Redrive, t *RedrivenTopic) error {
	tell := func() {
		if r.Progress != nil {
			r.Progress(*t)
		}
	}
	q := r.Query
	q.Topic = t.Topic
	if r.Try > 0 {
		var err error
		if t.Stopped, err = c.tryDead(ctx, r, q, t); err != nil {
			return err
		}
		tell()
		if t.Stopped != "" {
			return nil
		}
	}
	q.State, q.Limit, q.Cursor = "", r.Rate, ""
	for act := (Act{Action: RequeueAction, Query: q}); ; {
		next := time.After(time.Second)
		done, err := c.Act(ctx, act)
		if err != nil {
			return err
		}
		t.Requeued += done.Done
		act.Query.Cursor = done.NextCursor
		t.Over = done.NextCursor == ""
		if tell(); t.Over {
			return nil
		}
		if done.Done == 0 {
			continue // it has looked for some, and found none
		}
		select {
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryDead brings the first tasks of a topic back, and waits until it is known what becomes of them.
// It returns why the others should stay, "" if they should not.
func (c *Client) tryDead(ctx context.Context, r *Redrive, q Query, t *RedrivenTopic) (stopped string, err error) {
	var first []string
	q.State, q.Brief = "", true
	for q.Limit = r.Try; len(first) == 0; {
		page, err := c.ListDead(ctx, q)
		if err != nil {
			return "", err
		}
		for i := range page.Tasks {
			first = append(first, page.Tasks[i].ID)
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			break
		}
	}
	if len(first) == 0 {
		return "", nil
	}
	done, err := c.Act(ctx, Act{Action: RequeueAction, IDs: first})
	if err != nil {
		return "", err
	}
	t.Requeued += done.Done
	for until := time.Now().Add(r.TryWithin); ; {
		failed, why := 0, ""
		for _, id := range first {
			task, err := c.Get(ctx, id)
			switch {
			case errors.Is(err, ErrNotFound):
				return "", nil // it is done
			case err != nil:
				return "", err
			case task.State == Finished:
				return "", nil
			case task.State == Dead, task.Attempt > 0 && task.State != Delivering:
				failed, why = failed+1, task.LastError
			}
		}
		if failed == len(first) {
			return fmt.Sprintf("the first %d failed again: %s", failed, why), nil
		}
		if time.Now().After(until) {
			return fmt.Sprintf("none of the first %d was delivered within %v", len(first), r.TryWithin), nil
		}
		select {
		case <-time.After(tryAgain):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// tryAgain is how often a redrive looks what has become of the first tasks.
const tryAgain = 250 * time.Millisecond
