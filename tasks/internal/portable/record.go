package portable

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// Exported takes a record apart. Nothing of the result points into the record.
func Exported(id string, rec []byte) (x task.Exported, err error) {
	f, err := record.Decode(rec)
	if err != nil {
		return x, err
	}
	x.Task = engine.DescribeRecord(id, &f)
	x.Fingerprint, x.Stamp = f.Fingerprint, f.Stamp
	return x, nil
}

// Record is the reverse of Exported. Errors: *task.InvalidError, task.ErrTooLarge.
func Record(x *task.Exported) ([]byte, error) {
	var f task.Faults
	if !task.ValidName(x.ID) {
		f.Add("id", task.NameProblem)
	}
	r := x.Request()
	engine.CheckContent(&f, &r)
	f.CheckHeaders(x.Headers)
	if len(x.LastError) > task.MaxReason {
		f.Add("last_error", fmt.Sprintf("must be at most %d bytes", task.MaxReason))
	}
	rec := record.Fields{
		Flags: record.ChosenID, Headers: record.EncodeHeaders(x.Headers), LastError: []byte(x.LastError),
		Fingerprint: x.Fingerprint, Stamp: x.Stamp,
		Attempt: number(&f, "attempt", int64(x.Attempt), 0), Revision: number(&f, "revision", x.Revision, 1),
		Due: instant(&f, "due_at", x.Due), Created: created(&f, x.Created),
	}
	var known bool
	switch x.State {
	case task.Pending, task.Ready, task.Delivering:
		rec.Next = instant(&f, "next_at", x.Next)
	case task.Held:
		rec.Next = instant(&f, "next_at", x.Next)
		at := instant(&f, "held_at", x.HeldAt)
		rec.Hold(at)
	case task.Dead:
		rec.Next = instant(&f, "died_at", x.Died)
		rec.State, known = engine.DeadStateOf(x.Reason)
		if !known {
			f.Add("reason", "must be exhausted, buried or deleted, or left out")
		}
	case task.Finished:
		rec.Next = instant(&f, "finished_at", x.Finished)
		rec.State, known = engine.FinishedStateOf(x.Outcome)
		if !known {
			f.Add("outcome", "must be delivered, cancelled or skipped, or left out")
		}
	default:
		f.Add("state", "must be pending, held, dead or finished")
	}
	if at := rec.Next; rec.State == record.Pending && at < rec.Due {
		f.Add("next_at", "must not be before due_at")
	}
	attempts(&f, &rec, x.Attempts)
	rec.Target = target(&f, x.Target)
	if err := f.Err(); err != nil {
		return nil, err
	}
	if len(rec.Headers) > task.MaxHeaderBytes {
		return nil, fmt.Errorf("%w: headers must be at most %d bytes together", task.ErrTooLarge, task.MaxHeaderBytes)
	}
	return engine.AppendRecord(nil, &r, rec), nil
}

// target returns the encoded form of what a task says of its own delivery.
func target(f *task.Faults, t *task.Target) []byte {
	own, err := t.Stored()
	if invalid, ok := errors.AsType[*task.InvalidError](err); ok {
		*f = append(*f, invalid.Fields...)
	}
	return engine.EncodeTarget(own)
}

func number(f *task.Faults, field string, n int64, least int64) uint32 {
	if n < least || n > math.MaxUint32 {
		f.Add(field, fmt.Sprintf("must be from %d to %d", least, uint32(math.MaxUint32)))
		return 0
	}
	return uint32(n)
}

// created returns the time of creation of a record, to the nanosecond: it is a part of the identity
// of the task.
func created(f *task.Faults, at time.Time) int64 {
	if y := at.UTC().Year(); y < 1970 || y >= 2262 {
		f.Add("created_at", "must be a time from 1970 to 2261")
		return 0
	}
	return at.UnixNano()
}

// instant checks a time: it must be from 1970 to the last second of 9999.
func instant(f *task.Faults, field string, at time.Time) int64 {
	ms := record.Millis(at)
	if ms < 0 || ms >= record.HeldUntil {
		f.Add(field, "must be a time from 1970 to 9999")
		return 0
	}
	return ms
}

func attempts(f *task.Faults, rec *record.Fields, all []task.Attempt) {
	if len(all) > task.MaxAttempts {
		f.Add("attempts", fmt.Sprintf("must be at most %d", task.MaxAttempts))
		return
	}
	for i := range all {
		a := &all[i]
		outcome, known := engine.AttemptStateOf(a.Outcome)
		switch {
		case !known:
			f.Add("attempts.outcome", "must be failed, lease_expired, buried, process_ended or delivered")
		case len(a.By) > task.MaxAttemptBy, len(a.Error) > task.MaxAttemptError:
			f.Add("attempts", fmt.Sprintf("by must be at most %d bytes, error at most %d", task.MaxAttemptBy, task.MaxAttemptError))
		case a.Took < 0:
			f.Add("attempts.took", "must not be negative")
		default:
			rec.Attempts = record.AppendAttempt(rec.Attempts, record.PastAttempt{
				Outcome: outcome, Number: number(f, "attempts.number", int64(a.Number), 1), Ended: instant(f, "attempts.ended_at", a.Ended),
				Took: record.RoundUpMillis(a.Took), By: []byte(a.By), Error: []byte(a.Error),
			})
			continue
		}
		return
	}
}

// Plan plans the creation of a task from its record. Errors: task.ErrTooLarge, task.ErrNotGranted,
// *task.InvalidError.
func Plan(e *engine.Engine, id string, rec []byte, by engine.Admission) (engine.Plan, error) {
	f, err := record.Decode(rec)
	switch {
	case err != nil || !task.ValidName(id) || !task.ValidName(string(f.Topic)):
		return engine.Plan{}, task.Invalid("id", "must belong to a task that this version can read")
	case !by.Grant.Allows(string(f.Topic)):
		return engine.Plan{}, task.ErrNotGranted
	case len(f.Payload) > e.Config.MaxPayload:
		return engine.Plan{}, fmt.Errorf("%w: payload must be at most %d bytes", task.ErrTooLarge, e.Config.MaxPayload)
	}
	return engine.Plan{
		ID: id, Topic: string(f.Topic), Chosen: true, Imported: true, Rec: rec,
		Print: f.Fingerprint, Next: f.Next, By: by,
	}, nil
}
