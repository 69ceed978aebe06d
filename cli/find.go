package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
)

// find is the command that finds tasks, groups and topics by a part of their names.
type find struct {
	remote
	figures
	Text  string `arg:"" placeholder:"TEXT" help:"A part of an id, or of the name of a group or a topic, in capital or small letters."`
	Limit int    `env:"-" default:"100" help:"End after so many tasks, groups and topics."`
}

func (c *find) check(bad *faults) {
	if c.Limit < 1 {
		bad.add("limit: must be at least 1")
	}
}

// call prints what each part has found that was not found before.
func (c *find) call(ctx context.Context, s *session) error {
	query := client.SearchQuery{Text: strings.TrimSpace(c.Text), Limit: min(c.Limit, largestPage)}
	told := make(map[string]bool)
	show := s.progress("tasks", tasksUnknown)
	defer show.end()
	looked := 0
	for part, err := range s.Searches(ctx, query, client.Scope(c.Scope)) {
		if err != nil {
			return err
		}
		show.add(max(part.LookedAt-looked, 0))
		looked = max(looked, part.LookedAt)
		rows := c.found(part, told)
		if len(rows) > 0 {
			show.end()
		}
		if err := c.print(s, rows); err != nil {
			return err
		}
		if len(told) >= c.Limit && part.NextCursor != "" {
			fmt.Fprintf(s.std.err, "looked at about %d of %d tasks; there may be more: --limit\n", part.LookedAt, part.Of)
			return nil
		}
		if part.NextCursor == "" && (len(told) == 0 || !part.Complete) {
			c.end(s.std.err, part, len(told))
		}
	}
	return nil
}

// end says what the search was about, where it has found nothing or may have left something out.
func (c *find) end(w io.Writer, part *client.FoundPart, found int) {
	fmt.Fprintf(w, "%d found among %s", found, counted(part.Of, "task", "tasks"))
	if !part.Complete {
		fmt.Fprint(w, "; not complete: a node was missing")
	}
	fmt.Fprintln(w)
	warnOfMissing(w, &part.Reach)
}

// A foundRow is a line about what was found.
type foundRow struct {
	Kind  string       `json:"kind"` // task, group or topic
	Match string       `json:"match"`
	Name  string       `json:"name"`
	Topic string       `json:"topic,omitempty"`
	Task  *client.Task `json:"task,omitempty"`
}

// found returns what a part has found and none before it, up to the limit.
func (c *find) found(part *client.FoundPart, told map[string]bool) (rows []foundRow) {
	add := func(r foundRow) {
		if key := r.Kind + " " + r.Name; !told[key] && len(told) < c.Limit {
			told[key] = true
			rows = append(rows, r)
		}
	}
	for i := range part.Tasks {
		t := &part.Tasks[i]
		add(foundRow{"task", t.Match, t.Task.ID, t.Task.Topic, &t.Task})
	}
	for _, g := range part.Groups {
		add(foundRow{Kind: "group", Match: g.Match, Name: g.Name, Topic: g.Topic})
	}
	for _, t := range part.Topics {
		add(foundRow{Kind: "topic", Match: t.Match, Name: t.Name})
	}
	return rows
}

func (c *find) print(s *session, rows []foundRow) error {
	if len(rows) == 0 {
		return nil
	}
	var text bytes.Buffer
	cells := make([][]string, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		if s.json {
			line, err := json.Marshal(r)
			if err != nil {
				return err
			}
			text.Write(append(plainJSON(line), '\n'))
			continue
		}
		row := []string{r.Kind, r.Name, r.Topic, "", "", ""}
		if r.Task != nil {
			row = []string{r.Kind, r.Name, r.Topic, stateText(r.Task), nextText(r.Task, time.Now()), short(r.Task.LastError, 60)}
		}
		cells = append(cells, row)
	}
	if !s.json {
		table(&text, cells)
	}
	_, err := s.std.out.Write(text.Bytes())
	return err
}
