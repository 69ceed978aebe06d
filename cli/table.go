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
	"unicode/utf8"

	"github.com/lapsehq/lapse/client"
)

// table writes rows in aligned columns, the first row being the heads.
func table(w io.Writer, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			cell = plain(cell)
			row[i] = cell
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", widths[i], cell)
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// block writes the properties of one thing under its name. Properties without a value are left out.
func block(w io.Writer, name string, pairs ...string) {
	fmt.Fprintln(w, plain(name))
	var rows [][]string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{"  " + pairs[i], pairs[i+1]})
		}
	}
	table(w, rows)
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
			t.ID, t.Topic, stateText(t), timeText(t.DueAt), next, fmt.Sprint(t.Attempt), t.Group, fmt.Sprint(t.Revision),
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
func taskBlock(w io.Writer, t *client.Task, topic *client.Topic, now time.Time) {
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
	if !t.NextAt.Equal(t.DueAt) {
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
	if t.Delivery != nil {
		text, _ := json.Marshal(t.Delivery) // it came as JSON
		own = string(text)
	}
	way, giveUp := "", ""
	if topic != nil {
		way, giveUp = wayText(topic), giveUpText(t, topic, now)
	}
	block(w, t.ID, "topic", t.Topic, "delivery", way, "own delivery", own, "delivers to", t.DeliversTo, "undeliverable", t.Undeliverable, "state", stateText(t), "due", instantText(t.DueAt, now), "next", next, "held", held, "died", died, "finished", finished,
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

// wayText says how a topic's tasks are delivered, and what keeps them from it.
func wayText(topic *client.Topic) string {
	text := topic.Delivery.Kind
	switch {
	case topic.Undeliverable != "":
		text += ", impossible: " + topic.Undeliverable
	case topic.Paused:
		text += ", paused"
	case topic.Delivery.Kind == "pull" && len(topic.Missing) == 0 && topic.Counts.Receivers == 0:
		text += ", no receiver waits"
	}
	return text
}

// manyAttempts is the default of max_attempts, which no task reaches.
const manyAttempts = 1_000_000

// giveUpText says when a failed attempt of a task will be the last one.
func giveUpText(t *client.Task, topic *client.Topic, now time.Time) string {
	if t.State == client.Dead {
		return ""
	}
	var ends []string
	retry := topic.Retry
	if topic.TaskDelivery && t.Delivery != nil {
		retry.MaxAttempts = cmp.Or(t.Delivery.Retry.MaxAttempts, retry.MaxAttempts)
		retry.MaxAge = cmp.Or(t.Delivery.Retry.MaxAge, retry.MaxAge)
	}
	if retry.MaxAttempts < manyAttempts {
		ends = append(ends, "after "+counted(retry.MaxAttempts, "attempt", "attempts"))
	}
	if age := time.Duration(retry.MaxAge); age > 0 {
		ends = append(ends, instantText(t.DueAt.Add(age), now))
	}
	return strings.Join(ends, ", or ")
}

// attemptTable is the story of the attempts of a task.
func attemptTable(w io.Writer, list []client.Attempt, now time.Time) {
	rows := [][]string{{"    #", "ENDED", "TOOK", "OUTCOME", "BY", "ERROR"}}
	for i := range list {
		a := &list[i]
		took := ""
		if a.Duration > 0 {
			took = a.Duration.String()
		}
		rows = append(rows, []string{fmt.Sprint("    ", a.Number), instantText(a.At, now), took, string(a.Outcome), a.By, short(a.Error, 80)})
	}
	table(w, rows)
}
