package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/lapsehq/lapse/client"
)

// audit is the command that tells who did what.
type audit struct {
	remote
	Topic string `env:"-" placeholder:"NAME" help:"Only acts on this topic."`
	Since span   `env:"-" placeholder:"24h" help:"How far to look back. Default: a month."`
	Limit int    `env:"-" default:"100" placeholder:"N" help:"How many acts to show, the latest: 1 to 1000."`
}

func (c *audit) call(ctx context.Context, s *session) error {
	q := client.AuditQuery{Topic: c.Topic, Limit: c.Limit}
	if c.Since.Duration > 0 {
		q.From = time.Now().Add(-c.Since.Duration)
	}
	page, err := s.Audit(ctx, q)
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) { auditTable(w, page) })
}

func auditTable(w io.Writer, page *client.AuditPage) {
	rows := [][]string{{"AT", "BY", "VERB", "ON", "COUNT", "UNDO", "DETAIL"}}
	for i := range page.Entries {
		e := &page.Entries[i]
		on := cmp.Or(e.Task, e.Topic, e.Target, "-")
		if e.Task == "" && e.Group != "" {
			on = "group " + e.Group
		}
		verb := e.Verb
		if e.Unknown {
			verb += ", outcome unknown"
		}
		if e.Undoes != "" {
			verb += ", undoes " + e.Undoes
		}
		undo := "-"
		if e.Undo != "" {
			undo = e.ID
		}
		rows = append(rows, []string{e.At.Local().Format("01-02 15:04:05"), cmp.Or(e.By, "-"), verb, on, fmt.Sprint(e.Count), undo, cmp.Or(e.Detail, "-")})
	}
	table(w, rows)
	if page.Partial != "" {
		fmt.Fprintln(w, "acts are missing:", page.Partial)
	}
	if page.NextCursor != "" {
		fmt.Fprintln(w, "there are earlier acts: give --limit")
	}
}

// auditUndo is the command that takes an act back.
type auditUndo struct {
	remote
	ID string `arg:"" help:"The id of the act, as lapse audit shows it under UNDO."`
}

func (c *auditUndo) call(ctx context.Context, s *session) error {
	u, err := s.Undo(ctx, c.ID)
	if err != nil {
		return err
	}
	return s.print(func(w io.Writer) {
		fmt.Fprintf(w, "%s of %s has taken it back\n", u.Verb, cmp.Or(u.Task, u.Topic))
	})
}
