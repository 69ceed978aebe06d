package record

import (
	"encoding/binary"
	"fmt"
)

// The attempts of a record are those that have failed last, the oldest first. In the record of a
// finished task that was delivered, the last one is that delivery. Each is
//
//	1        outcome: 0 failed, 1 its lease ran out, 2 buried, 3 its process ended, 4 delivered
//	uvarint  number of the attempt
//	uvarint  when it ended, Unix ms
//	uvarint  how long it took, ms; 0: not known
//	text     receiver
//	text     error
//
// A text is a uvarint, 0 if it is that of the attempt before, otherwise 1 + its length, and then
// its bytes. So ten attempts that fail alike take about 200 bytes.
//
// Example: attempt 2 of a webhook failed like attempt 1, after 10 s:
//
//	00 02 f8 c5 cd 86 a6 37 90 4e 00 00
const (
	// MaxAttempts bounds the attempts of a record, and MaxAttemptBytes their size: the oldest go.
	MaxAttempts     = 10
	MaxAttemptBytes = 2 << 10
)

// Outcomes of attempts.
const (
	Failed       uint8 = iota // by its receiver
	LeaseExpired              // not settled in time
	GivenUp                   // the receiver has buried the task
	ProcessEnded              // that was making it
	Acked                     // it was the delivery of a finished task
	Outcomes                  // how many there are
)

// A PastAttempt is one that has ended. Its slices point into the record.
type PastAttempt struct {
	Outcome uint8
	Number  uint32
	Ended   int64 // Unix ms
	Took    int64 // ms; 0: not known
	By      []byte
	Error   []byte
}

// AppendAttempt returns encoded attempts with one more. The oldest are left out if there are more
// than MaxAttempts, or if they take more than MaxAttemptBytes. raw is not changed.
func AppendAttempt(raw []byte, a PastAttempt) []byte {
	all, err := DecodeAttempts(raw)
	if err != nil {
		all = nil // Decode has checked them
	}
	all = append(all, a)
	all = all[max(0, len(all)-MaxAttempts):]
	dst := encodeAttempts(make([]byte, 0, len(raw)+64), all)
	for len(dst) > MaxAttemptBytes && len(all) > 1 {
		all = all[1:]
		dst = encodeAttempts(dst[:0], all)
	}
	return dst
}

func encodeAttempts(dst []byte, all []PastAttempt) []byte {
	var last PastAttempt
	for _, a := range all {
		dst = append(dst, a.Outcome)
		dst = binary.AppendUvarint(dst, uint64(a.Number))
		dst = binary.AppendUvarint(dst, uint64(a.Ended))
		dst = binary.AppendUvarint(dst, uint64(a.Took))
		dst = appendText(dst, a.By, last.By)
		dst = appendText(dst, a.Error, last.Error)
		last = a
	}
	return dst
}

func appendText(dst, text, last []byte) []byte {
	if string(text) == string(last) {
		return append(dst, 0)
	}
	return append(binary.AppendUvarint(dst, 1+uint64(len(text))), text...)
}

// DecodeAttempts returns the attempts of a record, the oldest first. Errors: ErrBad.
func DecodeAttempts(raw []byte) ([]PastAttempt, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	all := make([]PastAttempt, 0, MaxAttempts+1)
	err := eachAttempt(raw, func(a PastAttempt) { all = append(all, a) })
	return all, err
}

// checkAttempts returns ErrBad if raw is damaged.
func checkAttempts(raw []byte) error { return eachAttempt(raw, func(PastAttempt) {}) }

func eachAttempt(raw []byte, visit func(PastAttempt)) error {
	r := reader{rec: raw}
	var last PastAttempt
	for n := 0; n == 0 || len(r.rec) > 0; n++ {
		kind := r.take(1)
		a := PastAttempt{
			Number: uint32(r.uvarint()), Ended: int64(r.uvarint()), Took: int64(r.uvarint()),
			By: r.text(last.By), Error: r.text(last.Error),
		}
		if r.cut || kind[0] >= Outcomes || n == MaxAttempts {
			return fmt.Errorf("%w: attempts", ErrBad)
		}
		a.Outcome = kind[0]
		visit(a)
		last = a
	}
	return nil
}

func (r *reader) text(last []byte) []byte {
	n := r.uvarint()
	if n == 0 {
		return last
	}
	return r.take(n - 1)
}
