package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"github.com/lapsehq/lapse/client"
)

// schedule is the command that schedules a task, or many.
type schedule struct {
	remote
	Topic string `arg:"" optional:"" help:"The kind of task. Not with --batch."`
	taskFlags
	Batch string `env:"-" placeholder:"FILE" help:"Schedule the tasks in a file, one JSON object a line as in the HTTP API; - reads standard input."`
}

func (c *schedule) call(ctx context.Context, s *session) (err error) {
	if c.Batch != "" {
		return s.scheduleBatch(ctx, c.Batch)
	}
	r, err := c.request(c.Topic)
	if err != nil {
		return err
	}
	slip := ""
	if isTerminal(s.std.err) && !s.json {
		slip = s.slip(ctx, c.Topic)
	}
	call := s.Schedule
	if c.Replace {
		call = s.Replace
	}
	t, err := patiently(ctx, s, func(ctx context.Context) (*client.Task, error) { return call(ctx, r) })
	switch {
	case errors.Is(err, client.ErrUnknown) && c.ID != "":
		return fmt.Errorf("%w; it is safe to give the same command again", err)
	case errors.Is(err, client.ErrUnknown) && t != nil && t.ID != "":
		return fmt.Errorf("%w; to repeat it safely, add --id %s", err, t.ID)
	}
	if err != nil {
		return err
	}
	over := endOf(t, time.Now())
	printed := s.print(func(w io.Writer) {
		done := "scheduled"
		switch {
		case over != nil:
			return
		case t.Created:
		case c.Replace:
			done = "replaced"
		case t.State == client.Held:
			fmt.Fprintf(w, "%s is there already: held, with %s left\n", t.ID, roundedText(time.Duration(t.Remaining)))
			return
		case stateText(t) == string(client.Pending):
			done = "there already"
		default:
			done = "there already, and " + stateText(t)
		}
		fmt.Fprintf(w, "%s is %s: due %s\n", t.ID, done, instantText(t.Due, time.Now()))
		if slip != "" {
			fmt.Fprintf(w, "It is the first task of %s. Was it for %s? Then: lapse cancel %s\n", c.Topic, slip, t.ID)
		}
	})
	return errors.Join(printed, over)
}

// A keptTask is the error of a repeated request whose task is finished and kept: the request
// schedules nothing.
type keptTask struct{ text string }

func (e *keptTask) Error() string { return e.text }
func (e *keptTask) Unwrap() error { return client.ErrNotFound }

// endOf returns a keptTask if the task is finished, else nil.
func endOf(t *client.Task, now time.Time) error {
	if t.State != client.Finished {
		return nil
	}
	when := ""
	if t.FinishedAt != nil {
		when = " " + instantText(*t.FinishedAt, now)
	}
	return &keptTask{nothingScheduled(t.ID, stateText(t)+when) + "; another --id makes a new task"}
}

func nothingScheduled(id, state string) string {
	return fmt.Sprintf("nothing is scheduled: %s was scheduled before, and is %s", id, state)
}

func (c *schedule) check(bad *faults) {
	switch {
	case c.Batch != "" && (c.Topic != "" || !reflect.ValueOf(c.taskFlags).IsZero()):
		bad.add("batch: the file says everything: give no topic, and no flag about a single task")
	case c.Batch == "" && c.Topic == "":
		bad.add("topic: must be given, or --batch")
	}
	if c.Delay.given && !c.DueAt.IsZero() {
		bad.add("delay: must not be given together with --due-at")
	}
	if c.Delivery != "" {
		if err := json.Unmarshal([]byte(c.Delivery), new(client.Target)); err != nil {
			bad.add("delivery: must be a JSON object, such as {\"url\":\"https://shop/hooks/42\"}")
		} else if hasRepeatedField(c.Delivery) {
			bad.add("delivery: must not have a field twice")
		}
	}
	if c.Replace && c.ID == "" {
		bad.add("replace: needs --id")
	}
}
