package engine_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A transition is one row of the table of states: it takes the task "t" of the
// topic "x" through a write of the ledger.
type transition struct {
	name     string
	settings TopicSettings
	from     func(r *rig.Rig)       // brings t to where the row begins
	do       func(r *rig.Rig) error // the event; ErrUnknown also for what is not recorded
	busy     store.State            // while the write is under way
	place    recovery.Place         // afterwards, in the ledger
	state    State                  // afterwards; 0: gone
	late     State                  // the state of t if the caller left before the answer; 0: state
	gone     bool                   // then it is nowhere
	undone   State                  // where t ends if its write was never sent; 0: nowhere
	kept     bool                   // the write is sent even though its caller has gone
	silent   bool                   // no caller waits for the write
	check    func(before, after record.Fields) error
}

var transitions = []transition{
	{
		name: "absent, Schedule",
		from: func(*rig.Rig) {},
		do: func(r *rig.Rig) error {
			_, err := r.Schedule(r.T.Context(), Request{ID: "t", Topic: "x", Delay: time.Hour})
			return err
		},
		busy: store.Creating, place: recovery.Pending, state: Pending, gone: true,
		check: func(_, after record.Fields) error { return wantFields(after, 1, 0, record.Pending) },
	},
	{
		name: "pending, Reschedule", from: inAnHour,
		do: func(r *rig.Rig) error {
			_, err := r.Reschedule(r.T.Context(), "t", Move{Delay: rig.Ptr(2 * time.Hour)})
			return err
		},
		busy: store.Moving, place: recovery.Pending, state: Pending, undone: Pending,
		check: func(before, after record.Fields) error {
			if after.Due-before.Due < time.Hour.Milliseconds() {
				return fmt.Errorf("due moved from %d to %d", before.Due, after.Due)
			}
			return wantFields(after, 2, 0, record.Pending)
		},
	},
	{
		name: "ready, Reschedule", from: dueNow,
		do: func(r *rig.Rig) error {
			_, err := r.Reschedule(r.T.Context(), "t", Move{Delay: rig.Ptr(2 * time.Hour)})
			return err
		},
		busy: store.Moving, place: recovery.Pending, state: Pending, undone: Ready,
	},
	{
		name: "pending, Fire", from: inAnHour,
		do:   func(r *rig.Rig) error { _, err := r.Fire(r.T.Context(), "t"); return err },
		busy: store.Moving, place: recovery.Pending, state: Ready, undone: Pending,
		check: func(_, after record.Fields) error { return wantFields(after, 2, 0, record.Pending) },
	},
	{
		name: "pending, Replace", from: inAnHour,
		do: func(r *rig.Rig) error {
			_, err := r.Replace(r.T.Context(), Request{ID: "t", Topic: "x", Delay: 2 * time.Hour, Payload: []byte("2")})
			return err
		},
		busy: store.Moving, place: recovery.Pending, state: Pending, undone: Pending,
		check: func(_, after record.Fields) error {
			if string(after.Payload) != "2" {
				return fmt.Errorf("payload %q", after.Payload)
			}
			return wantFields(after, 2, 0, record.Pending)
		},
	},
	{
		name: "absent, Schedule held", from: func(*rig.Rig) {},
		do: func(r *rig.Rig) error {
			_, err := r.Schedule(r.T.Context(), Request{ID: "t", Topic: "x", Held: true})
			return err
		},
		busy: store.Creating, place: recovery.Pending, state: Held, gone: true,
		check: func(_, after record.Fields) error { return wantFields(after, 1, 0, record.Pending) },
	},
	{
		name: "ready, Replace by a held one", from: dueNow, do: supersede(Request{Held: true, Delay: time.Hour}),
		busy: store.Moving, place: recovery.Pending, state: Held, undone: Ready,
		check: func(_, after record.Fields) error { return wantFields(after, 2, 0, record.Pending) },
	},
	{
		name: "delivering, superseded", from: handedOut, do: supersede(Request{Delay: time.Hour, Payload: []byte("2")}),
		busy: store.Replacing, place: recovery.Pending, state: Pending, undone: Delivering,
		check: func(before, after record.Fields) error {
			if string(after.Payload) != "2" || after.Created != before.Created {
				return fmt.Errorf("payload %q, created %d, before %d", after.Payload, after.Created, before.Created)
			}
			return wantFields(after, 2, 0, record.Pending)
		},
	},
	{
		name: "delivering, superseded by one that is due", from: handedOut, do: supersede(Request{}),
		busy: store.Replacing, place: recovery.Pending, state: Ready, undone: Delivering,
	},
	{
		name:     "delivering a claimed attempt, superseded by a held one",
		settings: TopicSettings{CountCrashes: true}, from: handedOut, do: supersede(Request{Held: true}),
		busy: store.Replacing, place: recovery.Pending, state: Held, undone: Delivering,
		check: func(_, after record.Fields) error {
			if after.Flags&record.Claimed != 0 {
				return errors.New("an attempt is marked as claimed")
			}
			return wantFields(after, 2, 0, record.Pending)
		},
	},
	{
		name: "dead, superseded", from: buried, do: supersede(Request{Delay: time.Hour, Payload: []byte("2")}),
		busy: store.Requeuing, place: recovery.Pending, state: Pending, undone: Dead,
		check: func(before, after record.Fields) error {
			if string(after.Payload) != "2" || after.Created != before.Created || len(after.LastError) > 0 {
				return fmt.Errorf("payload %q, created %d, before %d, error %q", after.Payload, after.Created, before.Created, after.LastError)
			}
			return wantFields(after, 2, 0, record.Pending)
		},
	},
	{
		name: "finished, superseded", settings: keepsFinished, from: finishedTask, do: supersede(Request{Delay: time.Hour}),
		busy: store.Requeuing, place: recovery.Pending, state: Pending, undone: Finished,
		check: func(_, after record.Fields) error { return wantFields(after, 2, 0, record.Pending) },
	},
	{
		name: "pending, Cancel", from: inAnHour, do: cancelT,
		busy: store.Cancelling, place: recovery.Nowhere, undone: Pending,
	},
	{
		name: "ready, Cancel", from: dueNow, do: cancelT,
		busy: store.Cancelling, place: recovery.Nowhere, undone: Ready,
	},
	{
		name: "dead, Cancel", from: buried, do: cancelT,
		busy: store.Finishing, place: recovery.Nowhere, undone: Dead,
	},
	{
		name: "ready, handed out and claimed", settings: TopicSettings{CountCrashes: true}, from: dueNow,
		do: func(r *rig.Rig) error {
			ds, err := r.Reserve(r.T.Context(), "x", 1, 0, time.Hour)
			if err == nil && len(ds) == 0 {
				err = ErrUnknown
			}
			return err
		},
		busy: store.Claiming, place: recovery.Pending, state: Delivering, late: Ready, undone: Ready,
		check: func(_, after record.Fields) error {
			if after.Flags&record.Claimed == 0 {
				return errors.New("the attempt is not marked as claimed")
			}
			return wantFields(after, 1, 1, record.Pending)
		},
	},
	{
		name: "delivering, Ack", from: handedOut, do: settleT(Verdict{Verb: Ack}),
		busy: store.Finishing, place: recovery.Nowhere, kept: true,
	},
	{
		name: "delivering, Bury", from: handedOut, do: settleT(Verdict{Verb: Bury, Reason: "beyond repair"}),
		busy: store.Burying, place: recovery.Dead, state: Dead, kept: true,
		check: func(_, after record.Fields) error {
			if string(after.LastError) != "beyond repair" {
				return fmt.Errorf("last error %q", after.LastError)
			}
			return wantFields(after, 1, 1, record.Buried)
		},
	},
	{
		name: "delivering, attempts exhausted", settings: TopicSettings{Retry: Retry{MaxAttempts: 1}},
		from: handedOut, do: settleT(Verdict{Verb: Release}),
		busy: store.Burying, place: recovery.Dead, state: Dead, kept: true,
		check: func(_, after record.Fields) error { return wantFields(after, 1, 1, record.Exhausted) },
	},
	{
		name: "delivering, lease out of the last attempt", settings: TopicSettings{Retry: Retry{MaxAttempts: 1}},
		from: handedOut,
		do: func(r *rig.Rig) error {
			rig.Pass(hour + time.Second)
			return nil
		},
		busy: store.Burying, place: recovery.Dead, state: Dead, kept: true, silent: true,
	},
	{
		name: "dead, Requeue", from: buried,
		do: func(r *rig.Rig) error {
			n, err := rig.Requeued(r.Admin().Requeue(r.T.Context(), "x", Requeue{IDs: []string{"t"}}))
			if err == nil && n != 1 {
				err = fmt.Errorf("requeued %d", n)
			}
			return err
		},
		busy: store.Requeuing, place: recovery.Pending, state: Ready, undone: Dead,
		check: func(_, after record.Fields) error { return wantFields(after, 2, 0, record.Pending) },
	},
	{
		name: "dead, DeleteDead", from: buried,
		do: func(r *rig.Rig) error {
			_, err := r.Admin().DeleteDead(r.T.Context(), "x", []string{"t"})
			return err
		},
		busy: store.Finishing, place: recovery.Nowhere, undone: Dead,
	},
	{
		name: "dead, kept long enough", settings: TopicSettings{DeadRetention: time.Hour}, from: buried,
		do:   func(*rig.Rig) error { rig.Pass(time.Hour + time.Second); return nil },
		busy: store.Finishing, place: recovery.Nowhere, silent: true, undone: Dead,
	},
	{
		name: "ready, max_lateness passed",
		from: func(r *rig.Rig) {
			r.Must(Request{ID: "t", Topic: "x", MaxLateness: time.Second})
			rig.Pass(2 * time.Second)
		},
		do:   func(r *rig.Rig) error { _, err := r.Reserve(r.T.Context(), "x", 1, 0, 0); return err },
		busy: store.Finishing, place: recovery.Nowhere, kept: true, silent: true,
	},
	{
		name: "delivering, Ack, finished tasks kept", settings: keepsFinished, from: handedOut, do: settleT(Verdict{Verb: Ack}),
		busy: store.Finishing, place: recovery.Dead, state: Finished, kept: true,
		check: func(_, after record.Fields) error { return wantFields(after, 1, 1, record.Delivered) },
	},
	{
		name:     "delivering, Ack of a claimed attempt, finished tasks kept",
		settings: TopicSettings{KeepFinished: 10 * time.Hour, CountCrashes: true}, from: handedOut, do: settleT(Verdict{Verb: Ack}),
		busy: store.Finishing, place: recovery.Dead, state: Finished, kept: true,
		check: func(_, after record.Fields) error {
			if after.Flags&record.Claimed != 0 {
				return errors.New("the attempt is marked as claimed")
			}
			return wantFields(after, 1, 1, record.Delivered)
		},
	},
	{
		name: "pending, Cancel, finished tasks kept", settings: keepsFinished, from: inAnHour, do: cancelT,
		busy: store.Cancelling, place: recovery.Dead, state: Finished, undone: Pending,
		check: func(_, after record.Fields) error { return wantFields(after, 1, 0, record.Cancelled) },
	},
	{
		name: "held, Cancel, finished tasks kept", settings: keepsFinished,
		from: func(r *rig.Rig) {
			inAnHour(r)
			_, err := r.Hold(r.T.Context(), "t")
			rig.Want(r.T, "Hold", err, nil)
		},
		do: cancelT, busy: store.Cancelling, place: recovery.Dead, state: Finished, undone: Held,
		check: func(_, after record.Fields) error {
			if after.Flags&record.Held != 0 {
				return errors.New("it is still held")
			}
			return wantFields(after, 2, 0, record.Cancelled)
		},
	},
	{
		name: "ready, Purge, finished tasks kept", settings: keepsFinished, from: dueNow,
		do:   func(r *rig.Rig) error { _, err := r.Admin().Purge(r.T.Context(), "x"); return err },
		busy: store.Cancelling, place: recovery.Dead, state: Finished, undone: Ready,
		check: func(_, after record.Fields) error { return wantFields(after, 1, 0, record.Cancelled) },
	},
	{
		name: "ready, max_lateness passed, finished tasks kept", settings: keepsFinished,
		from: func(r *rig.Rig) {
			r.Must(Request{ID: "t", Topic: "x", MaxLateness: time.Second})
			rig.Pass(2 * time.Second)
		},
		do:   func(r *rig.Rig) error { _, err := r.Reserve(r.T.Context(), "x", 1, 0, 0); return err },
		busy: store.Finishing, place: recovery.Dead, state: Finished, kept: true, silent: true,
		check: func(_, after record.Fields) error { return wantFields(after, 1, 0, record.Skipped) },
	},
	{
		name: "finished, kept long enough", settings: TopicSettings{KeepFinished: time.Hour}, from: finishedTask,
		do:   func(*rig.Rig) error { rig.Pass(time.Hour + time.Second); return nil },
		busy: store.Finishing, place: recovery.Nowhere, silent: true, undone: Finished,
	},
}

// keepsFinished outlasts what the rows wait for.
var keepsFinished = TopicSettings{KeepFinished: 10 * time.Hour}

func finishedTask(r *rig.Rig) {
	handedOut(r)
	if err := settleT(Verdict{Verb: Ack})(r); err != nil {
		r.T.Fatal("Ack:", err)
	}
}

const hour = time.Hour // the lease of handedOut

func inAnHour(r *rig.Rig) { r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour}) }

func dueNow(r *rig.Rig) { r.Must(Request{ID: "t", Topic: "x"}) }

func cancelT(r *rig.Rig) error {
	return r.Cancel(r.T.Context(), "t")
}

// supersede replaces t by whatever is asked for, in the same topic.
func supersede(req Request) func(r *rig.Rig) error {
	return func(r *rig.Rig) error {
		req.ID, req.Topic, req.Supersede = "t", "x", true
		_, err := r.Replace(r.T.Context(), req)
		return err
	}
}

// handedOut leaves the receipt where settleT finds it.
func handedOut(r *rig.Rig) {
	dueNow(r)
	ds, err := r.Reserve(r.T.Context(), "x", 1, 0, hour)
	if err != nil || len(ds) != 1 {
		r.T.Fatalf("Reserve = %v, %v", ds, err)
	}
	r.Delivery = ds[0]
}

func settleT(v Verdict) func(r *rig.Rig) error {
	return func(r *rig.Rig) error {
		a := r.SettleOne(v, r.Delivery)
		if a.Err == nil && !a.Recorded {
			return ErrUnknown
		}
		return a.Err
	}
}

func buried(r *rig.Rig) {
	handedOut(r)
	if err := settleT(Verdict{Verb: Bury})(r); err != nil {
		r.T.Fatal("Bury:", err)
	}
}

func wantFields(f record.Fields, revision, attempt uint32, state uint8) error {
	if f.Revision != revision || f.Attempt != attempt || f.State != state {
		return fmt.Errorf("revision %d, attempt %d, state %d; want %d, %d, %d", f.Revision, f.Attempt, f.State, revision, attempt, state)
	}
	return nil
}
