package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"

	"github.com/lapsehq/lapse/client"
)

// acting are the flags of commands that do something with all tasks that a filter selects.
type acting struct {
	asking
	DryRun bool   `env:"-" help:"Only count the selected tasks."`
	Cursor string `env:"-" placeholder:"TEXT" help:"Where an earlier command has ended, whose other flags were the same."`
}

// asking is the flag of commands that ask on a terminal before they do something with many tasks.
type asking struct {
	Yes bool `env:"-" help:"Do it without asking. Without a terminal nothing is asked."`
}

// asks reports whether the command asks.
func (c *asking) asks(s *session) bool {
	return !c.Yes && isTerminal(os.Stdin) && isTerminal(s.std.err)
}

// ask returns an error unless the user agrees to what will happen.
func (c *asking) ask(s *session, what string) error {
	if !confirmed(os.Stdin, s.std.err, what+". Go on?") {
		return errors.New("nothing was done")
	}
	return nil
}

// selection are the flags by which commands select tasks that are not dead.
type selection struct {
	Topic string `env:"-" placeholder:"NAME" help:"Tasks of this topic, in place of ids."`
	State string `env:"-" placeholder:"STATE" help:"Tasks in this state, in place of ids: pending, retrying (pending, and an attempt was made), held (pending, its countdown is held), ready or delivering."`
	textFilter
	DueFrom instant `env:"-" placeholder:"TIME" help:"Tasks whose next attempt is not before this time, RFC 3339, in place of ids."`
	DueTo   instant `env:"-" placeholder:"TIME" help:"Tasks whose next attempt is before this time, in place of ids."`
	acting
}

// query is what the flags select.
func (c *selection) query(group string) client.Query {
	return client.Query{
		Topic: c.Topic, Group: group, State: client.State(c.State), IDPrefix: c.IDPrefix, Error: c.Error, ErrorLike: c.ErrorLike,
		DueFrom: c.DueFrom.Time, DueTo: c.DueTo.Time,
	}
}

// either notes an error unless either ids or flags name tasks.
func (c *acting) either(q client.Query, ids []string, bad *faults) {
	selected := q != client.Query{}
	if selected == (len(ids) > 0) {
		bad.add("id: give ids, or flags that select tasks such as --topic or --group, not both")
	}
	if !selected {
		c.unused(bad)
	}
}

// deadSelection are the flags by which commands select dead tasks of a topic.
type deadSelection struct {
	textFilter
	Group    string  `env:"-" placeholder:"NAME" help:"Dead tasks of this group, in place of ids."`
	Reason   string  `env:"-" placeholder:"REASON" help:"Dead tasks with this reason, in place of ids: exhausted, buried or deleted."`
	DiedFrom instant `env:"-" placeholder:"TIME" help:"Dead tasks that did not die before this time, RFC 3339, in place of ids."`
	DiedTo   instant `env:"-" placeholder:"TIME" help:"Dead tasks that died before this time, in place of ids."`
	acting
}

func (c *deadSelection) query() client.Query {
	return client.Query{
		Group: c.Group, IDPrefix: c.IDPrefix, Error: c.Error, ErrorLike: c.ErrorLike, Reason: client.Reason(c.Reason),
		DiedFrom: c.DiedFrom.Time, DiedTo: c.DiedTo.Time,
	}
}

// unused notes flags that are given although no filter is.
func (c *acting) unused(bad *faults) {
	if c.Yes || c.DryRun || c.Cursor != "" {
		bad.add("yes, dry-run and cursor: are for tasks that are selected by flags")
	}
}

// run does it, call by call, and says how it goes on a terminal. done says what has become of the
// tasks, such as "cancelled".
func (c *acting) run(ctx context.Context, s *session, a client.Act, done string) error {
	query := a.Query
	if c.DryRun {
		selected, err := c.count(ctx, s, a)
		if err == nil && selected == 0 && c.Cursor == "" {
			err = s.checkQuery(ctx, query)
		}
		return errors.Join(err, c.say(s, err, "%s would be %s\n", counted(selected, "task", "tasks"), done))
	}
	total := tasksUnknown
	if c.Cursor == "" {
		selected, err := c.sure(ctx, s, a, done)
		if err != nil || selected == 0 {
			return err
		}
		total = selected
	}
	progress, failed := s.progress("tasks", total), []client.Refusal(nil)
	defer progress.end()
	changed, refused := 0, 0
	for a.Query.Cursor = c.Cursor; ; {
		got, err := s.Act(ctx, a)
		if err != nil {
			if p := (*client.Problem)(nil); errors.As(err, &p) {
				changed += p.Done
			}
			was := counted(changed, "task was", "tasks were") + " " + done
			if a.Query.Cursor == "" || errors.Is(err, client.ErrInvalid) {
				return &partial{err, was}
			}
			rest := "--cursor " + a.Query.Cursor
			if !a.Due.IsZero() { // the cursor is for this deadline, which may come from a delay
				rest += " --due-at " + a.Due.Format(time.RFC3339Nano)
			}
			return &partial{err, was + "; to go on: " + rest}
		}
		changed, refused = changed+got.Done, refused+len(got.Failed)
		failed = append(failed, got.Failed[:min(len(got.Failed), max(0, namedRefusals-len(failed)))]...)
		if s.json {
			if err := s.print(nil); err != nil {
				return err
			}
		}
		if a.Query.Cursor = got.NextCursor; a.Query.Cursor == "" {
			break
		}
		progress.add(got.Done + len(got.Failed))
	}
	progress.end()
	if changed == 0 && refused == 0 && c.Cursor == "" {
		if err := s.checkQuery(ctx, query); err != nil {
			return err
		}
	}
	if !s.json {
		if err := c.say(s, nil, "%s %s\n", counted(changed, "task is", "tasks are"), done); err != nil {
			return err
		}
	}
	if refused == 0 {
		return nil
	}
	why := make([]error, len(failed))
	for i, f := range failed {
		why[i] = fmt.Errorf("%s: %w", f.ID, f.Problem)
	}
	if refused > len(failed) {
		why = append(why, fmt.Errorf("and %d more", refused-len(failed)))
	}
	return &failures{fmt.Sprintf("%s not %s:", counted(refused, "task was", "tasks were"), done), why}
}

// namedRefusals is how many refused tasks are named.
const namedRefusals = 20

// sure counts the tasks that are selected, and asks. It returns how many there are; if there is
// none, the command has nothing to do. It is tasksUnknown where the command does not ask. done says
// what will become of them.
func (c *acting) sure(ctx context.Context, s *session, a client.Act, done string) (selected int, err error) {
	if !c.asks(s) {
		return tasksUnknown, nil
	}
	query := a.Query
	if selected, err = c.count(ctx, s, a); err != nil {
		return 0, err
	}
	if selected == 0 {
		if err := s.checkQuery(ctx, query); err != nil {
			return 0, err
		}
		return 0, c.say(s, nil, "no task is selected\n")
	}
	return selected, c.ask(s, fmt.Sprintf("%s will be %s", counted(selected, "task", "tasks"), done))
}

// count counts the tasks that are selected.
func (c *acting) count(ctx context.Context, s *session, a client.Act) (selected int, err error) {
	for a.DryRun, a.Query.Limit = true, 0; ; {
		got, err := s.Act(ctx, a)
		if err != nil {
			return selected, err
		}
		selected += got.Matched
		if s.json && c.DryRun {
			if err := s.print(nil); err != nil {
				return selected, err
			}
		}
		if a.Query.Cursor = got.NextCursor; a.Query.Cursor == "" {
			return selected, nil
		}
	}
}

// say writes a line, unless there is an error. With --json it writes nothing.
func (c *acting) say(s *session, err error, format string, args ...any) error {
	if err != nil || s.json {
		return nil
	}
	_, err = fmt.Fprintf(s.std.out, format, args...)
	return err
}

// confirmed asks a question.
func confirmed(from io.Reader, to io.Writer, question string) bool {
	fmt.Fprintf(to, "%s [y/N] ", question)
	answer, err := bufio.NewReader(from).ReadString('\n')
	if err != nil { // the end is a no
		fmt.Fprintln(to)
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

// isTerminal reports whether a stream is one. Tests set it.
var isTerminal = func(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
