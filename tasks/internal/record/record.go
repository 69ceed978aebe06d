package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// A record is a task as the ledger and the arena hold it. Layout of version 1, integers
// little-endian, times in Unix milliseconds but for created:
//
//	offset size
//	0      1    version
//	1      1    state: 0 pending, 1 delivering with a parked lease; dead: 2 for a reason
//	            that is not known, 3 its attempts were exhausted, 4 buried by its receiver,
//	            5 its topic was deleted by force; finished: 6 in a way that is not known,
//	            7 delivered, 8 cancelled, 9 skipped
//	2      2    flags, see below
//	4      4    attempt: deliveries that have ended, or begun if claimed
//	8      4    revision
//	12     8    due
//	20     8    next attempt; of a dead or finished task the time of its end, of a held
//	            one HeldUntil
//	28     8    created, in Unix nanoseconds: see NewCreated
//	36     8    fingerprint of the request that created it
//	44     1+n  topic, length first
//	then, each only if its flag is set:
//	hasHeaders       uvarint size, then pairs: uvarint length, name, uvarint length, value
//	hasGroup         1+n group, length first
//	HasMaxLateness   8   milliseconds
//	HasLease         8+8 milliseconds left of the lease, nonce of its receipt
//	hasLastError     uvarint length, text
//	hasAttempts      uvarint length, attempts: see attempts.go
//	Held             8+8 when the task was held, the next attempt that it had
//	hasStamp         8   stamp of the last action that has changed the task
//	HasTarget        uvarint length, target: see target.go
//	then the payload, to the end.
//
// From release 0.1.0 on, a change of this layout gets a new version number, and this version stays
// readable for ever: testdata holds its fixtures. A record of a version that this binary does not
// know is kept as it is, and counted.
//
// The reason of a death is a state, and no optional part, because it is one of a few values, of
// dead records only.
const (
	// Version is the version of records. Nodes that do not know it keep such records and deliver
	// none.
	Version   = 1
	fixedSize = 44

	// HeldUntil is the next attempt of a held task: the last millisecond of the year 9999. No
	// deadline is so late.
	HeldUntil = 253_402_300_799_999

	// StampSize is how much longer a stamp makes a record.
	StampSize = 8

	stateOffset       = 1
	flagsOffset       = 2
	attemptOffset     = 4
	revisionOffset    = 8
	dueOffset         = 12
	nextOffset        = 20
	createdOffset     = 28
	fingerprintOffset = 36
)

// Flags. Append sets those of optional parts from the parts themselves, but for HasLease and Held.
const (
	hasHeaders uint16 = 1 << iota
	hasGroup
	HasMaxLateness
	HasLease // the time left of a parked lease, and the nonce of its receipt
	hasLastError
	Claimed  // the attempt was recorded before it was delivered
	ChosenID // the caller chose the id; Lapse made it otherwise
	hasAttempts
	Held // the countdown is held
	hasStamp
	HasTarget  // what the task says of its own delivery
	knownFlags = 1<<iota - 1
)

// States. Those from Dead on are of dead tasks.
const (
	Pending      uint8 = iota
	Parked             // delivering, with a lease that is not running: the node has ended
	Dead               // for a reason that the ledger does not know
	Exhausted          // its attempts were exhausted
	Buried             // by its receiver
	TopicDeleted       // by force
	Finished           // in a way that the ledger does not know
	Delivered          // finished: acknowledged
	Cancelled          // finished: by a caller
	Skipped            // finished: too late, or misfired
	States             // how many there are
)

// IsFinished reports whether a state is that of a finished task, which is kept to be read.
func IsFinished(state uint8) bool { return state >= Finished && state < States }

var (
	// ErrNewer is returned for a record of a version that this program does not know.
	ErrNewer = errors.New("record of a newer version")
	// ErrBad is returned for a damaged record.
	ErrBad = errors.New("damaged record")
)

// Fields is a record taken apart. Its slices point into the record. Times are in Unix
// milliseconds, but for Created.
type Fields struct {
	State       uint8
	Flags       uint16
	Attempt     uint32
	Revision    uint32
	Due         int64
	Next        int64
	Created     int64 // Unix nanoseconds: see NewCreated
	Fingerprint uint64
	Topic       []byte
	Headers     []byte // encoded pairs
	Group       []byte
	MaxLateness int64
	LeaseRest   int64
	Nonce       uint64
	LastError   []byte
	Attempts    []byte // encoded attempts that have failed
	HeldAt      int64  // of a held task, as HeldNext
	HeldNext    int64
	Stamp       uint64 // of the last action that has changed the task; 0: none has
	Target      []byte // encoded; see Target
	Payload     []byte
}

// Append appends the record of f to dst. The flags of optional parts follow
// from the parts themselves.
func (f *Fields) Append(dst []byte) []byte {
	flags := f.Flags & (Claimed | ChosenID | HasLease | Held)
	set := func(on bool, flag uint16) {
		if on {
			flags |= flag
		}
	}
	set(len(f.Headers) > 0, hasHeaders)
	set(len(f.Group) > 0, hasGroup)
	set(f.MaxLateness != 0, HasMaxLateness)
	set(len(f.LastError) > 0, hasLastError)
	set(len(f.Attempts) > 0, hasAttempts)
	set(f.Stamp != 0, hasStamp)
	set(len(f.Target) > 0, HasTarget)
	le := binary.LittleEndian
	if dst == nil {
		dst = make([]byte, 0, f.most())
	}
	dst = append(dst, Version, f.State)
	dst = le.AppendUint16(dst, flags)
	dst = le.AppendUint32(dst, f.Attempt)
	dst = le.AppendUint32(dst, f.Revision)
	dst = le.AppendUint64(dst, uint64(f.Due))
	dst = le.AppendUint64(dst, uint64(f.Next))
	dst = le.AppendUint64(dst, uint64(f.Created))
	dst = le.AppendUint64(dst, f.Fingerprint)
	dst = append(append(dst, byte(len(f.Topic))), f.Topic...)
	if flags&hasHeaders != 0 {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.Headers))), f.Headers...)
	}
	if flags&hasGroup != 0 {
		dst = append(append(dst, byte(len(f.Group))), f.Group...)
	}
	if flags&HasMaxLateness != 0 {
		dst = le.AppendUint64(dst, uint64(f.MaxLateness))
	}
	if flags&HasLease != 0 {
		dst = le.AppendUint64(dst, uint64(f.LeaseRest))
		dst = le.AppendUint64(dst, f.Nonce)
	}
	if flags&hasLastError != 0 {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.LastError))), f.LastError...)
	}
	if flags&hasAttempts != 0 {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.Attempts))), f.Attempts...)
	}
	if flags&Held != 0 {
		dst = le.AppendUint64(dst, uint64(f.HeldAt))
		dst = le.AppendUint64(dst, uint64(f.HeldNext))
	}
	if flags&hasStamp != 0 {
		dst = le.AppendUint64(dst, f.Stamp)
	}
	if flags&HasTarget != 0 {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.Target))), f.Target...)
	}
	return append(dst, f.Payload...)
}

// most returns how many bytes a record has at most.
func (f *Fields) most() int {
	const rest = 4*8 + StampSize + 2 + 4*binary.MaxVarintLen32 // fields of fixed size, and lengths
	return fixedSize + rest + len(f.Topic) + len(f.Headers) + len(f.Group) + len(f.LastError) + len(f.Attempts) +
		len(f.Target) + len(f.Payload)
}

// Decode takes a record apart. Errors: ErrNewer, ErrBad.
func Decode(rec []byte) (f Fields, err error) {
	if len(rec) == 0 {
		return f, fmt.Errorf("%w: empty", ErrBad)
	}
	if rec[0] > Version {
		return f, fmt.Errorf("%w: %d", ErrNewer, rec[0])
	}
	if rec[0] < Version || len(rec) < fixedSize+1 {
		return f, fmt.Errorf("%w: version %d, %d bytes", ErrBad, rec[0], len(rec))
	}
	le := binary.LittleEndian
	f = Fields{
		State:       rec[stateOffset],
		Flags:       le.Uint16(rec[flagsOffset:]),
		Attempt:     le.Uint32(rec[attemptOffset:]),
		Revision:    le.Uint32(rec[revisionOffset:]),
		Due:         int64(le.Uint64(rec[dueOffset:])),
		Next:        int64(le.Uint64(rec[nextOffset:])),
		Created:     int64(le.Uint64(rec[createdOffset:])),
		Fingerprint: le.Uint64(rec[fingerprintOffset:]),
	}
	if f.State >= States || f.Flags&^uint16(knownFlags) != 0 {
		return f, fmt.Errorf("%w: state %d, flags %#x", ErrBad, f.State, f.Flags)
	}
	r := reader{rec: rec[fixedSize:]}
	f.Topic = r.short()
	if f.Flags&hasHeaders != 0 {
		f.Headers = r.long()
		if _, err := DecodeHeaders(f.Headers); err != nil {
			return f, err
		}
	}
	if f.Flags&hasGroup != 0 {
		f.Group = r.short()
	}
	if f.Flags&HasMaxLateness != 0 {
		f.MaxLateness = int64(r.uint64())
	}
	if f.Flags&HasLease != 0 {
		f.LeaseRest = int64(r.uint64())
		f.Nonce = r.uint64()
	}
	if f.Flags&hasLastError != 0 {
		f.LastError = r.long()
	}
	if f.Flags&hasAttempts != 0 {
		f.Attempts = r.long()
		if err := checkAttempts(f.Attempts); err != nil {
			return f, err
		}
	}
	if f.Flags&Held != 0 {
		f.HeldAt = int64(r.uint64())
		f.HeldNext = int64(r.uint64())
	}
	if f.Flags&hasStamp != 0 {
		f.Stamp = r.uint64()
	}
	if f.Flags&HasTarget != 0 {
		f.Target = r.long()
		if _, err := DecodeTarget(f.Target); err != nil {
			return f, err
		}
	}
	if r.cut || len(f.Topic) == 0 {
		return f, fmt.Errorf("%w: cut short", ErrBad)
	}
	f.Payload = r.rec
	return f, nil
}

// reader takes parts off the front of a record.
type reader struct {
	rec []byte
	cut bool // the record ended too early
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.rec)) {
		r.cut, r.rec = true, nil
		return nil
	}
	part := r.rec[:n:n]
	r.rec = r.rec[n:]
	return part
}

func (r *reader) short() []byte {
	n := r.take(1)
	if n == nil {
		return nil
	}
	return r.take(uint64(n[0]))
}

func (r *reader) long() []byte {
	n := r.uvarint()
	return r.take(n)
}

func (r *reader) uvarint() uint64 {
	v, size := binary.Uvarint(r.rec)
	if size <= 0 {
		r.cut, r.rec = true, nil
		return 0
	}
	r.rec = r.rec[size:]
	return v
}

func (r *reader) uint64() uint64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// EncodeHeaders returns the headers as a record has them, in the order of their names; nil for
// none.
func EncodeHeaders(headers map[string]string) []byte {
	if len(headers) == 0 {
		return nil
	}
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	var raw []byte
	for _, name := range names {
		raw = AppendHeader(raw, name, headers[name])
	}
	return raw
}

// AppendHeader appends one pair of a record's headers.
func AppendHeader(dst []byte, name, value string) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
	return append(binary.AppendUvarint(dst, uint64(len(value))), value...)
}

// DecodeHeaders is the reverse of EncodeHeaders: nil for no headers. Errors: ErrBad.
func DecodeHeaders(raw []byte) (map[string]string, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	headers := make(map[string]string)
	r := reader{rec: raw}
	for len(r.rec) > 0 {
		name, value := r.long(), r.long()
		if r.cut {
			return nil, fmt.Errorf("%w: headers cut short", ErrBad)
		}
		headers[string(name)] = string(value)
	}
	return headers, nil
}

// The fields that are needed often are read and written in place.

// Whole reports whether rec has all fields of fixed size. The record of a task that is still
// being looked up is empty.
func Whole(rec []byte) bool { return len(rec) > fixedSize }

// Topic returns the name of the topic.
func Topic(rec []byte) []byte { return rec[fixedSize+1 : fixedSize+1+int(rec[fixedSize])] }

// Group returns the name of the group; nil if there is none, or if the record is not whole.
func Group(rec []byte) []byte {
	if !Whole(rec) || Flags(rec)&hasGroup == 0 {
		return nil
	}
	r := reader{rec: rec[fixedSize:]}
	r.short() // the topic
	if Flags(rec)&hasHeaders != 0 {
		r.long()
	}
	return r.short()
}

// Attempt returns the number of the last delivery.
func Attempt(rec []byte) uint32 { return binary.LittleEndian.Uint32(rec[attemptOffset:]) }

// SetAttempt writes the number of the last delivery.
func SetAttempt(rec []byte, attempt uint32) {
	binary.LittleEndian.PutUint32(rec[attemptOffset:], attempt)
}

// State returns the state.
func State(rec []byte) uint8 { return rec[stateOffset] }

// Revision returns the number of the last change.
func Revision(rec []byte) uint32 { return binary.LittleEndian.Uint32(rec[revisionOffset:]) }

// Due returns the deadline.
func Due(rec []byte) int64 { return int64(binary.LittleEndian.Uint64(rec[dueOffset:])) }

// Next returns the time of the next attempt, or of death.
func Next(rec []byte) int64 { return int64(binary.LittleEndian.Uint64(rec[nextOffset:])) }

// Created returns the time of creation, in Unix nanoseconds.
func Created(rec []byte) int64 { return int64(binary.LittleEndian.Uint64(rec[createdOffset:])) }

// Flags returns all flags.
func Flags(rec []byte) uint16 { return binary.LittleEndian.Uint16(rec[flagsOffset:]) }

// SetFlags writes all flags.
func SetFlags(rec []byte, flags uint16) {
	binary.LittleEndian.PutUint16(rec[flagsOffset:], flags)
}

// Fingerprint returns that of the request that created the task.
func Fingerprint(rec []byte) uint64 { return binary.LittleEndian.Uint64(rec[fingerprintOffset:]) }
