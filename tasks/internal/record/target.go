package record

import (
	"encoding/binary"
	"fmt"
)

// The target of a record is what the task says of its own delivery:
//
//	uvarint length, kind of the way that the settings are for; empty: there are none
//	uvarint length, receiver that the settings lead to, as logs and callers may see it
//	uvarint  max_attempts; this and the next three are 0 where the topic's holds
//	uvarint  max_age, ms
//	uvarint  min_backoff, ms
//	uvarint  max_backoff, ms
//	then the settings, a JSON object, to the end; empty: those of the topic hold.
//
// Example: a task with its own stream, and with five attempts at most:
//
//	06 "stream" 06 "orders" 05 00 00 00 {"stream":"orders"}

// MaxTargetBytes bounds a target. Only damaged records have longer ones.
const MaxTargetBytes = 8 << 10

// A Target is what a task says of its own delivery. Its slices point into the record. Times are in
// milliseconds; 0 stands for what the topic says.
type Target struct {
	Kind        []byte
	Receiver    []byte
	MaxAttempts uint64
	MaxAge      int64
	MinBackoff  int64
	MaxBackoff  int64
	Settings    []byte
}

// AppendTarget appends an encoded target.
func AppendTarget(dst []byte, t *Target) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(t.Kind))), t.Kind...)
	dst = append(binary.AppendUvarint(dst, uint64(len(t.Receiver))), t.Receiver...)
	dst = binary.AppendUvarint(dst, t.MaxAttempts)
	for _, ms := range []int64{t.MaxAge, t.MinBackoff, t.MaxBackoff} {
		dst = binary.AppendUvarint(dst, uint64(ms))
	}
	return append(dst, t.Settings...)
}

// DecodeTarget is the reverse of AppendTarget. Errors: ErrBad.
func DecodeTarget(raw []byte) (t Target, err error) {
	r := reader{rec: raw}
	t = Target{
		Kind: r.long(), Receiver: r.long(), MaxAttempts: r.uvarint(),
		MaxAge: int64(r.uvarint()), MinBackoff: int64(r.uvarint()), MaxBackoff: int64(r.uvarint()),
	}
	if r.cut || len(raw) > MaxTargetBytes {
		return t, fmt.Errorf("%w: target of %d bytes", ErrBad, len(raw))
	}
	t.Settings = r.rec
	return t, nil
}

// TargetOf returns the target of a record; the zero Target if it has none.
func TargetOf(rec []byte) (t Target) {
	if Flags(rec)&HasTarget != 0 {
		f, _ := Decode(rec)
		t, _ = DecodeTarget(f.Target) // Decode has checked it
	}
	return t
}
