package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/cli/internal/exportfile"
	"github.com/lapsehq/lapse/client"
)

// movePatience is how long an export or import goes on while the server cannot serve it: longer
// than a restart takes.
const movePatience = time.Minute

// export is the command that exports everything.
type export struct {
	remote
	Output string   `env:"-" placeholder:"FILE" help:"Where the export goes; a name that ends with .gz or .zst has it compressed. A repeated command goes on where an interrupted one has ended. Default: standard output."`
	Topic  []string `env:"-" placeholder:"NAME" help:"Only these topics; order.* stands for all whose names begin so. May be repeated."`
}

const exportDetail = "A line for each topic, task, dead task and finished task that is kept, as JSON; the last line says that the export is complete. " +
	"The server goes on meanwhile: a task that is there from the beginning to the end is in the export."

func (c *export) call(ctx context.Context, s *session) error {
	var file *exportfile.Writer
	begun := false
	to := exportTo{
		add: func(page []byte, _ string, begins bool) error {
			if begins && begun {
				return errBegunAnew
			}
			begun = begun || begins
			_, err := s.std.out.Write(page)
			return err
		},
		discard: func() error { return nil },
	}
	if c.Output != "" {
		w, err := exportfile.New(c.Output, c.Server, c.Topic)
		switch {
		case errors.Is(err, exportfile.ErrExists), errors.Is(err, exportfile.ErrOther):
			return fmt.Errorf("%w: output: %w", errSettings, err)
		case err != nil:
			return fmt.Errorf("output: %w", err)
		}
		defer w.Close()
		if why := w.Anew(); why != "" {
			fmt.Fprintf(s.std.err, "beginning anew: %s\n", why)
		}
		file = w
		to = exportTo{w.Add, w.Cursor(), w.Lines(), w.Finish, w.Discard}
		if to.lines > 0 {
			fmt.Fprintf(s.std.err, "going on behind line %d, which an earlier command has written\n", to.lines)
		}
	}
	if to.lines == 0 {
		if err := s.checkExported(ctx, c.Topic); err != nil {
			return errors.Join(err, to.discard())
		}
	}
	counts, err := s.export(ctx, c.Topic, &to)
	if err != nil {
		if file != nil {
			err = &partial{err, fmt.Sprintf("%s written; repeat the command to go on", counted(file.Lines(), "line is", "lines are"))}
		}
		return err
	}
	if to.finish == nil {
		return nil
	}
	return s.tellExported(counts)
}

// errBegunAnew is returned when what was written to standard output would have to be dropped.
var errBegunAnew = errors.New("the server could not go on where it was and has begun anew, and what is written there cannot be taken back; repeat the command, or have it write to a file with --output")

// exportTo is where an export goes.
type exportTo struct {
	add     func(page []byte, next string, begins bool) error
	cursor  string
	lines   int64
	finish  func() error // nil: nothing is to be done
	discard func() error // nothing was added
}

// export exports page by page. A page that cannot be had at the moment is asked for again.
func (s *session) export(ctx context.Context, topics []string, to *exportTo) (counts client.ExportCounts, err error) {
	bar := s.progress("lines", tasksUnknown)
	defer bar.end()
	for since := time.Now(); ; {
		page, err := s.Export(ctx, client.ExportQuery{Topics: topics, Cursor: to.cursor})
		if err != nil {
			if !client.Passing(err) || ctx.Err() != nil || time.Since(since) > movePatience {
				return counts, err
			}
			if err := pause(ctx, time.Second); err != nil {
				return counts, err
			}
			continue
		}
		if err := to.add(page.Lines, page.NextCursor, page.Begins); err != nil {
			return counts, fmt.Errorf("output: %w", err)
		}
		bar.add(linesIn(page.Lines))
		to.cursor, since = page.NextCursor, time.Now()
		if page.NextCursor != "" {
			continue
		}
		if to.finish != nil {
			err = to.finish()
		}
		return page.Counts, err
	}
}

// tellExported tells what an export has.
func (s *session) tellExported(c client.ExportCounts) error {
	if s.json {
		text, err := json.Marshal(c)
		if err == nil {
			_, err = fmt.Fprintf(s.std.out, "%s\n", text)
		}
		return err
	}
	fmt.Fprintf(s.std.out, "exported %s, %s, %d dead and %d finished\n", counted(c.Topics, "topic", "topics"), counted(c.Tasks, "task", "tasks"), c.Dead, c.Finished)
	if c.Unreadable > 0 {
		return fmt.Errorf("%s of a newer version, or damaged, could not be exported", counted(c.Unreadable, "record", "records"))
	}
	return nil
}

func linesIn(text []byte) (n int) {
	for _, c := range text {
		if c == '\n' {
			n++
		}
	}
	return n
}

// importFile is the command that imports an export.
type importFile struct {
	remote
	File          string `arg:"" help:"What lapse export has written, compressed or not; - is standard input."`
	ReplaceTopics bool   `env:"-" help:"Replace the settings of topics that the server has. Default: they stay as they are."`
}

const importFileDetail = "Each task comes as it was, with its deadline, attempts and revision. " +
	"A task that the server has already stays as it is, so that the command may be repeated: after an interruption it goes on where it has ended."

func (c *importFile) call(ctx context.Context, s *session) error {
	file, err := exportfile.Open(c.File)
	if err != nil {
		return fmt.Errorf("%w: file: %w", errSettings, err)
	}
	defer file.Close()
	noted, anew := file.Imported(c.Server, c.ReplaceTopics)
	switch {
	case anew != "":
		fmt.Fprintf(s.std.err, "beginning anew: %s\n", anew)
	case noted.Lines > 0:
		fmt.Fprintf(s.std.err, "going on behind line %d, which an earlier command has imported\n", noted.Lines)
	}
	done, kept, err := s.importFrom(ctx, file, &noted)
	if err == nil || errors.Is(err, client.ErrTruncated) { // there is nothing to go on with
		err = errors.Join(err, file.Forget())
	}
	if err == nil || done.Imported+done.Present+done.Topics+done.TopicsPresent+done.Refused > 0 {
		if tell := s.tellImported(done); tell != nil {
			return tell
		}
	}
	return importedSoFar(err, &noted, done, kept)
}

// importedSoFar is the error of an import: what ended it, and which lines were refused, also by
// commands that were interrupted before it. kept says whether a repeated one can go on.
func importedSoFar(err error, noted *exportfile.Imported, done client.ImportProgress, kept bool) error {
	var refused *failures
	if noted.Refused > 0 {
		refused = &failures{heading: "not imported " + counted(noted.Refused, "line", "lines")}
		if earlier := noted.Refused - done.Refused; earlier > 0 {
			refused.heading += fmt.Sprintf(" (%d of them by an earlier command)", earlier)
		}
		refused.heading += ":"
		for _, e := range noted.Reasons {
			if e.Problem == nil {
				continue // the file that keeps them was changed
			}
			refused.errs = append(refused.errs, fmt.Errorf("line %d: %w", e.Line, e.Problem))
		}
	}
	var more []string
	if errors.Is(err, context.Canceled) || client.Passing(err) {
		next := "a repeated command begins anew"
		if kept {
			next = "repeat the command to go on"
		}
		more = append(more, counted(noted.Lines, "line is", "lines are")+" done; "+next)
	}
	switch {
	case err == nil && refused != nil:
		return refused
	case refused != nil:
		more = append(more, refused.Error())
	}
	if len(more) > 0 {
		return &partial{err, strings.Join(more, "; ")}
	}
	return err
}

// importFrom imports a file from where noted says, and notes how far it has come. kept is false if
// that failed.
func (s *session) importFrom(ctx context.Context, file *exportfile.Reader, noted *exportfile.Imported) (_ client.ImportProgress, kept bool, _ error) {
	things, total := "bytes", int(file.Size())
	if total == 0 {
		things, total = "lines", tasksUnknown
	}
	bar := s.progress(things, total)
	defer bar.end()
	var shown int64
	earlier := noted.Refused
	kept = true
	o := client.ImportOptions{ReplaceTopics: noted.ReplaceTopics, Skip: noted.Lines, Patience: movePatience}
	o.Progress = func(p client.ImportProgress) {
		at := p.Lines
		if total > 0 {
			at = file.Done()
		}
		bar.add(int(at - shown))
		shown = at
		noted.Lines, noted.Refused = p.Lines, earlier+p.Refused
		if err := file.Note(noted); err != nil && kept {
			kept = false
			fmt.Fprintf(s.std.err, "a repeated command will begin anew: %v\n", err)
		}
	}
	done, err := s.ImportFrom(ctx, io.Reader(file), o, func(e client.ImportError) {
		if len(noted.Reasons) < reasonsTold {
			noted.Reasons = append(noted.Reasons, e)
		}
	})
	return done, kept, err
}

// tellImported tells what was imported.
func (s *session) tellImported(p client.ImportProgress) error {
	if s.json {
		text, err := json.Marshal(struct {
			Imported      int64 `json:"imported"`
			Present       int64 `json:"present"`
			Topics        int64 `json:"topics"`
			TopicsPresent int64 `json:"topics_present"`
			Refused       int64 `json:"refused"`
			Lines         int64 `json:"lines"`
		}{p.Imported, p.Present, p.Topics, p.TopicsPresent, p.Refused, p.Lines})
		if err == nil {
			_, err = fmt.Fprintf(s.std.out, "%s\n", text)
		}
		return err
	}
	text := fmt.Sprintf("imported %s and %s", counted(int(p.Imported), "task", "tasks"), counted(int(p.Topics), "topic", "topics"))
	if p.Present+p.TopicsPresent > 0 {
		text += fmt.Sprintf("; there already: %s and %s", counted(int(p.Present), "task", "tasks"), counted(int(p.TopicsPresent), "topic", "topics"))
	}
	_, err := fmt.Fprintln(s.std.out, text)
	return err
}
