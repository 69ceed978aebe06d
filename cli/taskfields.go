package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

// This file has the fields of a task: as flags, and as they are shown.

// taskFlags are flags about a single task.
type taskFlags struct {
	ID          string            `name:"id" env:"-" placeholder:"ID" help:"Id of the task, so that the command may be repeated. Default: one is made."`
	Delay       span              `env:"-" placeholder:"30m" help:"Time until the task is due, also in days: 7d, 1d12h. Default: now."`
	DueAt       instant           `env:"-" placeholder:"TIME" help:"The deadline itself, RFC 3339. Not with --delay."`
	Payload     string            `env:"-" placeholder:"JSON" help:"Any JSON; - reads standard input, @FILE a file."`
	Header      map[string]string `env:"-" placeholder:"NAME=VALUE" mapsep:"none" help:"Handed to the receiver. May be given several times."`
	Group       string            `env:"-" placeholder:"NAME" help:"Names the tasks that belong together."`
	MaxLateness span              `env:"-" placeholder:"2h" help:"Not delivered if later than that."`
	Delivery    string            `env:"-" placeholder:"JSON" help:"What is other for this task than for its topic, which must have task_delivery: '{\"url\":\"https://shop/hooks/42\",\"retry\":{\"max_attempts\":5}}'."`
	Replace     bool              `env:"-" help:"Replace the task of this id, if there is one. Needs --id."`
}

// request returns the request for the task.
func (c *taskFlags) request(topic string) (r client.Request, err error) {
	r = client.Request{ID: c.ID, Topic: topic, Delay: c.Delay.Duration, Due: c.DueAt.Time,
		Headers: c.Header, Group: c.Group, MaxLateness: c.MaxLateness.Duration}
	if c.Payload != "" {
		if r.Payload, err = input("payload", c.Payload); err != nil {
			return r, err
		}
	}
	if c.Delivery != "" {
		r.Target = new(client.Target)
		_ = json.Unmarshal([]byte(c.Delivery), r.Target) // check has read it
	}
	return r, nil
}

// taskTable is a list of tasks.
func taskTable(w io.Writer, list []client.Task, now time.Time) {
	rows := [][]string{{"ID", "TOPIC", "STATE", "NEXT", "ATTEMPT", "LAST ERROR"}}
	for i := range list {
		t := &list[i]
		rows = append(rows, []string{t.ID, t.Topic, stateText(t), nextText(t, now), fmt.Sprint(t.Attempt), short(t.LastError, 60)})
	}
	table(w, rows)
}

// wideTaskTable is a list of tasks with more about each.
func wideTaskTable(w io.Writer, list []client.Task, now time.Time) {
	rows := [][]string{{"ID", "TOPIC", "STATE", "DUE", "NEXT", "ATTEMPT", "GROUP", "REVISION", "CREATED", "NODE", "LAST ERROR"}}
	for i := range list {
		t := &list[i]
		next := timeText(t.NextAt)
		switch t.State {
		case client.Held, client.Dead, client.Finished:
			next = nextText(t, now)
		}
		rows = append(rows, []string{
			t.ID, t.Topic, stateText(t), timeText(t.Due), next, fmt.Sprint(t.Attempt), t.Group, fmt.Sprint(t.Revision),
			timeText(t.CreatedAt), t.Node, short(t.LastError, 250),
		})
	}
	table(w, rows)
}

// stateText is the state that --state selects a task by, and how a finished task has ended. A task
// that waits for another attempt after one that failed is retrying.
func stateText(t *client.Task) string {
	if t.State == client.Pending && t.Attempt > 0 {
		return string(client.Retrying)
	}
	if t.Outcome != "" {
		return string(t.State) + ", " + string(t.Outcome)
	}
	return string(t.State)
}

// nextText says when the next attempt of a task starts, if there is to be one.
func nextText(t *client.Task, now time.Time) string {
	switch t.State {
	case client.Held:
		return "after " + roundedText(time.Duration(t.Remaining))
	case client.Dead, client.Finished:
		return "-"
	}
	return relative(t.NextAt, now)
}

// taskBlock is all about one task. Without its topic it does not tell what comes next.
func taskBlock(w io.Writer, t *client.Task, topic *client.TopicInfo, now time.Time) {
	var headers []string
	for _, name := range slices.Sorted(maps.Keys(t.Headers)) {
		headers = append(headers, name+"="+t.Headers[name])
	}
	payload := string(t.Payload)
	if len(t.Binary) > 0 {
		payload = fmt.Sprintf("%d bytes that are not JSON", len(t.Binary))
	}
	next, held, died, finished, late := "", "", "", "", ""
	if t.HeldAt != nil {
		held = instantText(*t.HeldAt, now) + ", with " + roundedText(time.Duration(t.Remaining)) + " left"
	}
	if !t.NextAt.Equal(t.Due) {
		next = instantText(t.NextAt, now)
	}
	if t.DiedAt != nil {
		died = instantText(*t.DiedAt, now)
		if t.Reason != "" {
			died += ", " + string(t.Reason)
		}
	}
	if t.FinishedAt != nil {
		finished = instantText(*t.FinishedAt, now)
		if t.Outcome != "" {
			finished += ", " + string(t.Outcome)
		}
	}
	if t.MaxLateness > 0 {
		late = t.MaxLateness.String()
	}
	own := ""
	if t.Target != nil {
		text, _ := json.Marshal(t.Target) // it came as JSON
		own = string(text)
	}
	way, giveUp := "", ""
	if topic != nil {
		way, giveUp = wayText(topic), giveUpText(t, topic, now)
	}
	block(w, t.ID, "topic", t.Topic, "delivery", way, "own delivery", own, "delivers to", t.DeliversTo, "undeliverable", t.Undeliverable, "state", stateText(t), "due", instantText(t.Due, now), "next", next, "held", held, "died", died, "finished", finished,
		"attempt", fmt.Sprint(t.Attempt), "gives up", giveUp, "last error", t.LastError, "payload", payload, "headers", strings.Join(headers, ", "),
		"group", t.Group, "max lateness", late, "revision", fmt.Sprint(t.Revision), "created", instantText(t.CreatedAt, now), "node", t.Node)
	if len(t.Attempts) > 0 {
		head := "  failed attempts"
		if t.Attempts[len(t.Attempts)-1].Outcome == client.AttemptDelivered {
			head = "  attempts"
		}
		fmt.Fprintln(w, head)
		attemptTable(w, t.Attempts, now)
	}
}

// manyAttempts is the default of max_attempts, which no task reaches.
const manyAttempts = 1_000_000

// giveUpText says when a failed attempt of a task will be the last one.
func giveUpText(t *client.Task, topic *client.TopicInfo, now time.Time) string {
	if t.State == client.Dead {
		return ""
	}
	var ends []string
	retry := topic.Retry
	if topic.TaskDelivery && t.Target != nil {
		retry.MaxAttempts = cmp.Or(t.Target.Retry.MaxAttempts, retry.MaxAttempts)
		retry.MaxAge = cmp.Or(t.Target.Retry.MaxAge, retry.MaxAge)
	}
	if retry.MaxAttempts < manyAttempts {
		ends = append(ends, "after "+counted(retry.MaxAttempts, "attempt", "attempts"))
	}
	if age := time.Duration(retry.MaxAge); age > 0 {
		ends = append(ends, instantText(t.Due.Add(age), now))
	}
	return strings.Join(ends, ", or ")
}
