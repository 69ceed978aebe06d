package movein

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goccy/go-json"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/client"
)

// An Outcome is what has become of a request.
type Outcome uint8

// The outcomes.
const (
	Refused  Outcome = iota // Lapse did not take it
	Imported                // there is a new task
	Repeated                // the task was there already
	Moved                   // the task of an earlier import has what the request says
	Kept                    // the id is that of a task that is not of this import
	Conflict                // the id is taken by a task with other content: see Writer.Resolve
)

// Accepted reports whether Lapse has a task for the thing.
func (o Outcome) Accepted() bool { return o == Imported || o == Repeated || o == Moved }

const (
	// patience is how long calls are repeated that fail for a reason that will pass.
	patience   = 2 * time.Minute
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
	// A request has at most so many tasks, and not much more bytes of payloads.
	batchTasks = 5000
	batchBytes = 4 << 20
	// lastWrites is how long writes that have begun may go on after an import was interrupted.
	lastWrites = 10 * time.Second
	// callsAtOnce bounds the calls about single tasks.
	callsAtOnce = 32
	// attempts bounds how often a task is looked at that others change.
	attempts = 20
)

// A Writer creates the tasks of an import.
type Writer struct {
	Client *client.Client
	Source string // the value of ImportedHeader
	// Moves: a later request with the same id moves the task. Otherwise the first one counts.
	Moves bool
	// Tolerance is by how much two deadlines may differ that count as the same.
	Tolerance time.Duration
	Counts    *Counts

	// Patience replaces how long failing calls are repeated. 0: the default, 2 minutes.
	Patience time.Duration
}

// mark adds the header that names the source.
func (w *Writer) mark(r *client.Request) {
	if r.Headers == nil {
		r.Headers = make(map[string]string, 1)
	}
	r.Headers[ImportedHeader] = w.Source
}

// Write creates tasks, and counts them. An outcome of Conflict is not counted yet. The error is
// that of calls that did not succeed within the writer's patience, or of the context: then a part
// of the tasks may have been created.
func (w *Writer) Write(ctx context.Context, requests []client.Request) ([]Outcome, error) {
	outcomes := make([]Outcome, 0, len(requests))
	for len(requests) > 0 {
		n, size := 0, 0
		for n < len(requests) && n < batchTasks && size < batchBytes {
			size += len(requests[n].Payload)
			n++
		}
		part, err := w.writeBatch(ctx, requests[:n])
		if outcomes = append(outcomes, part...); err != nil {
			return outcomes, err
		}
		requests = requests[n:]
	}
	return outcomes, nil
}

// writeBatch is Write for as many tasks as fit into a request.
func (w *Writer) writeBatch(ctx context.Context, requests []client.Request) ([]Outcome, error) {
	outcomes := make([]Outcome, len(requests))
	todo := make([]int, len(requests))
	for i := range requests {
		w.mark(&requests[i])
		todo[i] = i
	}
	err := w.patiently(ctx, func() error {
		part := make([]client.Request, len(todo))
		for k, i := range todo {
			part[k] = requests[i]
		}
		results, err := w.Client.ScheduleBatch(ctx, part)
		if err != nil {
			return err
		}
		var again []int
		var why error
		for k, i := range todo {
			switch p := results[k].Problem; {
			case p == nil && results[k].Repeated:
				outcomes[i] = Repeated
			case p == nil:
				outcomes[i] = Imported
			case client.Passing(p):
				again, why = append(again, i), p
			case errors.Is(p, client.ErrExists), errors.Is(p, client.ErrDead):
				outcomes[i] = Conflict
			default:
				outcomes[i] = Refused
				w.Counts.Refuse(requests[i].ID, p)
			}
		}
		todo = again
		return why
	})
	for _, o := range outcomes {
		w.count(o)
	}
	return outcomes, err
}

func (w *Writer) count(o Outcome) {
	switch o {
	case Imported:
		w.Counts.Imported.Add(1)
	case Repeated:
		w.Counts.Repeated.Add(1)
	case Moved:
		w.Counts.Moved.Add(1)
	case Kept:
		w.Counts.Kept.Add(1)
	}
}

// Resolve decides about requests whose ids are taken, each by itself, and counts the outcomes. The
// caller has read the source again just before. Errors are those of Write.
func (w *Writer) Resolve(ctx context.Context, requests []client.Request) ([]Outcome, error) {
	outcomes := make([]Outcome, len(requests))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(callsAtOnce)
	for i := range requests {
		w.mark(&requests[i])
		group.Go(func() error {
			err := w.patiently(ctx, func() (err error) {
				outcomes[i], err = w.resolve(ctx, &requests[i])
				return err
			})
			if err != nil && ctx.Err() == nil && !client.Passing(err) {
				w.Counts.Refuse(requests[i].ID, err)
				return nil
			}
			w.count(outcomes[i])
			return err
		})
	}
	return outcomes, group.Wait()
}

// errBusy is returned for a task that others go on changing, or that is being delivered.
var errBusy = errors.New("the task with this id is being delivered or changed; repeat the import for its new deadline")

// resolve decides about one request whose id is taken.
func (w *Writer) resolve(ctx context.Context, r *client.Request) (Outcome, error) {
	pause := firstPause
	for range attempts {
		there, err := w.Client.Get(ctx, r.ID)
		switch {
		case errors.Is(err, client.ErrNotFound):
			if !w.Moves {
				return Repeated, nil // it has been finished in this moment
			}
			made, err := w.Client.Schedule(ctx, *r)
			if errors.Is(err, client.ErrExists) {
				continue
			}
			if err != nil {
				return Refused, err
			}
			return createdOr(made, Repeated), nil
		case err != nil:
			return Refused, err
		case there.Headers[ImportedHeader] != w.Source || there.Topic != r.Topic:
			return Kept, nil
		case !w.Moves, w.same(there, r):
			return Repeated, nil
		case there.State == client.Dead:
			return Refused, errors.New("its task is dead, and the source has a new deadline: delete or requeue the dead task")
		}
		if there.State != client.Delivering {
			same := client.IfMatch(ctx, there.ETag)
			if there.State == client.Finished {
				same = ctx // what is finished has no revision any more: PUT makes a new task
			}
			put, err := w.Client.Replace(same, *r)
			if err == nil {
				return createdOr(put, Moved), nil
			}
			if !errors.Is(err, client.ErrRevision) && !errors.Is(err, client.ErrDelivering) && !errors.Is(err, client.ErrDead) &&
				!errors.Is(err, client.ErrUnknown) {
				return Refused, err
			}
		}
		if err := Wait(ctx, pause); err != nil {
			return Refused, err
		}
		pause = min(2*pause, time.Second)
	}
	return Refused, errBusy
}

func createdOr(t *client.Task, otherwise Outcome) Outcome {
	if t.Created {
		return Imported
	}
	return otherwise
}

// same reports whether a task has, or had, what the request says.
func (w *Writer) same(t *client.Task, r *client.Request) bool {
	d := t.Due.Sub(r.Due)
	if d > w.Tolerance || d < -w.Tolerance {
		return false
	}
	if t.State != client.Pending && t.State != client.Ready && t.State != client.Held {
		return true // it has been handed out with that deadline, whatever its content
	}
	var a, b bytes.Buffer
	if len(t.Payload) > 0 && json.Compact(&a, t.Payload) != nil || len(r.Payload) > 0 && json.Compact(&b, r.Payload) != nil {
		return false
	}
	return bytes.Equal(a.Bytes(), b.Bytes())
}

// Again creates the task of a thing whose former task this import has cancelled: also if Lapse
// keeps that one as finished, and the request is the same. It counts the outcome.
func (w *Writer) Again(ctx context.Context, r client.Request) error {
	w.mark(&r)
	o := Refused
	err := w.patiently(ctx, func() error {
		there, err := w.Client.Get(ctx, r.ID)
		if err == nil && there.State != client.Finished {
			o, err = w.resolve(ctx, &r)
			return err
		}
		if err != nil && !errors.Is(err, client.ErrNotFound) {
			return err
		}
		o = Imported
		_, err = w.Client.Replace(ctx, r)
		return err
	})
	if err != nil && ctx.Err() == nil && !client.Passing(err) {
		w.Counts.Refuse(r.ID, err)
		return nil
	}
	if err == nil {
		w.count(o)
	}
	return err
}

// Cancel cancels a task of this import that is pending still. reason, if it is not nil, decides
// whether to; it sees the task as it is now. It reports whether the task was cancelled.
func (w *Writer) Cancel(ctx context.Context, id string, reason func(*client.Task) bool) (cancelled bool, err error) {
	err = w.patiently(ctx, func() error {
		there, err := w.Client.Get(ctx, id)
		if err != nil {
			return ignore(err, client.ErrNotFound)
		}
		if there.Headers[ImportedHeader] != w.Source || there.State == client.Dead || there.State == client.Finished ||
			there.State == client.Delivering || reason != nil && !reason(there) {
			return nil
		}
		err = w.Client.Cancel(client.IfMatch(ctx, there.ETag), id)
		cancelled = err == nil
		if errors.Is(err, client.ErrUnknown) {
			return fmt.Errorf("%w: %w", client.ErrUnavailable, err) // it is looked at again
		}
		return ignore(err, client.ErrNotFound, client.ErrRevision, client.ErrDelivering, client.ErrDead)
	})
	return cancelled, err
}

// List returns a page of tasks.
func (w *Writer) List(ctx context.Context, query client.Query) (page *client.Page, err error) {
	err = w.patiently(ctx, func() error {
		page, err = w.Client.List(ctx, query)
		return err
	})
	return page, err
}

func ignore(err error, kinds ...error) error {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return nil
		}
	}
	return err
}

// patiently repeats a call that fails for a reason that will pass, for as long as the patience
// lasts.
func (w *Writer) patiently(ctx context.Context, call func() error) error {
	limit := w.Patience
	if limit == 0 {
		limit = patience
	}
	end := time.Now().Add(limit)
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		err := call()
		if err == nil || !client.Passing(err) || ctx.Err() != nil || time.Now().Add(pause).After(end) {
			return err
		}
		if Wait(ctx, pause) != nil {
			return err
		}
	}
}

// Wait returns after d, or with the error of the context.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Grace returns a context for writes that have begun. It goes on for 10 s after ctx has ended.
func Grace(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = Wait(work, lastWrites)
		cancel(context.Cause(ctx))
	})
	return work, func() {
		stop()
		cancel(nil)
	}
}
