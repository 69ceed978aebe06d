package engine

import (
	"encoding/binary"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// This file has the way of a task's fields from its request into its record, and back.

// CheckContent finds what is wrong with a request, but for its id, its deadline, its headers and
// its target, and for bounds of the configuration.
func CheckContent(f *task.Faults, r *task.Request) {
	if !task.ValidName(r.Topic) {
		f.Add("topic", task.NameProblem)
	}
	if r.Group != "" && !task.ValidName(r.Group) {
		f.Add("group", task.NameProblem)
	}
	if r.MaxLateness != 0 && (r.MaxLateness < time.Millisecond || r.MaxLateness > task.MaxAhead) {
		f.Add("max_lateness", "must be from 1 ms to 3660 days")
	}
}

// AppendRecord appends the record of a task to dst: f, with what the request says. Headers and
// target, which are encoded, and times are those of f.
func AppendRecord(dst []byte, r *task.Request, f record.Fields) []byte {
	f.Topic, f.Group, f.Payload = []byte(r.Topic), []byte(r.Group), r.Payload
	f.MaxLateness = record.RoundUpMillis(r.MaxLateness)
	return f.Append(dst)
}

// fingerprint returns a hash of a request as the caller made it. A delay counts as given, not as
// the deadline that follows from it.
func fingerprint(r *task.Request, headers, target []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	var n [8]byte
	number := func(v int64) {
		binary.LittleEndian.PutUint64(n[:], uint64(v))
		_, _ = d.Write(n[:])
	}
	text := func(v string) {
		number(int64(len(v)))
		_, _ = d.WriteString(v)
	}
	text(r.Topic)
	if r.Due.IsZero() {
		number(-1)
		number(int64(r.Delay))
	} else {
		number(record.Millis(r.Due))
	}
	text(r.Group)
	number(int64(r.MaxLateness))
	number(int64(len(headers)))
	_, _ = d.Write(headers)
	_, _ = d.Write(r.Payload)
	if len(target) > 0 { // else it is the fingerprint of before there were targets
		number(int64(len(target)))
		_, _ = d.Write(target)
	}
	if r.Held { // the same, and -1 is no length
		number(-1)
	}
	return d.Sum64()
}

// fillTask gives a task what its record says, but for its topic. Only the payload points into the
// record.
func fillTask(t *task.Task, f *record.Fields, state task.State) {
	t.State, t.Due, t.Next, t.Created = state, record.FromMillis(f.Due), record.FromMillis(f.Next), record.FromNanos(f.Created)
	t.Group, t.MaxLateness, t.LastError = string(f.Group), millisDuration(f.MaxLateness), string(f.LastError)
	t.Attempt, t.Revision, t.Target = int(f.Attempt), int64(f.Revision), targetOf(f)
	if len(f.Payload) > 0 {
		t.Payload = f.Payload
	}
	if len(f.Headers) > 0 {
		t.Headers, _ = record.DecodeHeaders(f.Headers) // checked by decode
	}
	if state == task.Pending && f.Flags&record.Held != 0 {
		t.State, t.Next, t.HeldAt = task.Held, record.FromMillis(f.HeldNext), record.FromMillis(f.HeldAt)
		t.Remaining = max(0, millisDuration(f.HeldNext-f.HeldAt))
	}
	switch state {
	case task.Dead:
		t.Died, t.Next, t.Reason = t.Next, t.Due, reasons[f.State]
	case task.Finished:
		t.Finished, t.Next, t.Outcome = t.Next, t.Due, endsOf[f.State]
	}
}
