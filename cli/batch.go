package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/client"
)

const (
	batchTasks = 10_000  // in a request: the API's limit
	batchBytes = 8 << 20 // of lines in a request, half of what the server reads at most
	lineBytes  = 1 << 25 // of one line: a payload of the largest size, and room

	reasonsTold = 20 // of tasks that were refused
)

// A batchRun schedules the lines of a file, a request's worth at a time.
type batchRun struct {
	*session
	requests []client.Request
	lines    []int // of the requests
	size     int   // bytes of their lines
	taken    int
	refused  int
	finished int     // of tasks that are finished and kept: nothing is scheduled
	reasons  []error // of the first that were refused or are finished
	progress *progress
}

// scheduleBatch schedules each line of a file. A line that cannot be read ends it, a task that is
// refused does not. Accepted tasks stay accepted; if the lines have ids, the whole file may be
// repeated.
func (s *session) scheduleBatch(ctx context.Context, name string) error {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return fmt.Errorf("%w: batch: %w", errSettings, err)
		}
		defer file.Close()
	}
	run := &batchRun{session: s, progress: s.progress("tasks", tasksUnknown)}
	err := run.read(ctx, file)
	if err == nil {
		err = run.send(ctx)
	}
	run.progress.end()
	if err != nil {
		return &partial{err, fmt.Sprint("scheduled before that: ", run.taken)}
	}
	if !s.json {
		fmt.Fprintf(s.std.out, "scheduled %d of %s\n", run.taken, counted(run.taken+run.refused+run.finished, "task", "tasks"))
	}
	return run.failed()
}

// failed returns an error about the tasks that were not scheduled, or nil.
func (b *batchRun) failed() error {
	var heading []string
	if b.refused > 0 {
		heading = append(heading, "refused "+counted(b.refused, "task", "tasks"))
	}
	if b.finished > 0 {
		heading = append(heading, counted(b.finished, "task was", "tasks were")+" scheduled before, and finished")
	}
	if len(heading) == 0 {
		return nil
	}
	return &failures{strings.Join(heading, "; ") + ":", b.reasons}
}

func (b *batchRun) read(ctx context.Context, r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, lineBytes)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		request, err := readRequest(line)
		if err != nil {
			return fmt.Errorf("%w: line %d: %w", client.ErrInvalid, n, err)
		}
		if len(b.requests) == batchTasks || b.size+len(line) > batchBytes && b.size > 0 {
			if err := b.send(ctx); err != nil {
				return err
			}
		}
		b.requests, b.lines, b.size = append(b.requests, request), append(b.lines, n), b.size+len(line)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// readRequest reads a line in the form of the HTTP API.
func readRequest(line []byte) (r client.Request, err error) {
	if line[0] != '{' {
		return r, errors.New("it must be a JSON object, as each line: one task, and no array around them")
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	if err := decoder.Decode(&r); err != nil {
		return r, wrongType(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("there is more than one task")
	}
	return r, nil
}

// wrongType returns an error of a decoder in the words of JSON: that of a value of the wrong type
// names types of Go.
func wrongType(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return fmt.Errorf("%s must not be of type %s", e.Field, e.Value)
	}
	return err
}

// count counts the outcome of a line.
func (b *batchRun) count(line int, r client.Result) {
	var reason error
	switch {
	case r.Problem != nil:
		b.refused++
		reason = r.Problem
	case r.Finished:
		b.finished++
		reason = &keptTask{nothingScheduled(r.ID, string(client.Finished)) + "; another id makes a new task"}
	default:
		b.taken++
		return
	}
	if len(b.reasons) < reasonsTold {
		b.reasons = append(b.reasons, fmt.Errorf("line %d: %w", line, reason))
	}
}

// send schedules the collected lines, and reports the outcome.
func (b *batchRun) send(ctx context.Context) error {
	if len(b.requests) == 0 {
		return nil
	}
	results, err := b.ScheduleBatch(ctx, b.requests)
	if err != nil {
		return fmt.Errorf("lines %d to %d: %w", b.lines[0], b.lines[len(b.lines)-1], err)
	}
	var report bytes.Buffer
	for i, r := range results {
		if b.json {
			text, err := json.Marshal(struct {
				Line     int             `json:"line"`
				ID       string          `json:"id,omitempty"`
				Finished bool            `json:"finished,omitempty"`
				Problem  *client.Problem `json:"problem,omitempty"`
			}{b.lines[i], r.ID, r.Finished, r.Problem})
			if err != nil {
				return err
			}
			report.Write(append(plainJSON(text), '\n'))
		}
		b.count(b.lines[i], r)
	}
	b.progress.add(len(results))
	b.requests, b.lines, b.size = b.requests[:0], b.lines[:0], 0
	_, err = b.std.out.Write(report.Bytes())
	return err
}
