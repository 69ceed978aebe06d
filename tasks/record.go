package tasks

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A record is a task as the ledger and the arena hold it. Layout of version 1,
// integers little-endian, times in Unix milliseconds:
//
//	offset size
//	0      1    version, 1
//	1      1    state: 0 pending, 1 delivering with a parked lease; dead: 2 for a reason
//	            that nobody remembers, 3 its attempts were exhausted, 4 buried by its
//	            receiver, 5 its topic was deleted by force
//	2      2    flags, see below
//	4      4    attempt: deliveries that have ended, or begun if claimed
//	8      4    revision
//	12     8    due
//	20     8    next attempt; of a dead task the time of its death
//	28     8    created
//	36     8    fingerprint of the request that created it
//	44     1+n  topic, length first
//	then, each only if its flag is set:
//	flagHeaders      uvarint size, then pairs: uvarint length, name, uvarint length, value
//	flagGroup        1+n group, length first
//	flagMaxLateness  8   milliseconds
//	flagLease        8+8 milliseconds left of the lease, nonce of its receipt
//	flagLastError    uvarint length, text
//	then the payload, to the end.
//
// A change of this layout gets a new version number, and this version stays
// readable for ever: testdata holds a fixture of each. A record of a version
// that this binary does not know is kept as it is, and counted.
//
// The reason of a death is a state, and no optional part, because it is one of a few
// values, of dead records only. It came before the first release, and so needs no
// version of its own; 2 is what dead records said until then, and still say if
// the ledger has lost why.
const (
	recordVersion = 1
	recordFixed   = 44

	offState       = 1
	offFlags       = 2
	offAttempt     = 4
	offRevision    = 8
	offDue         = 12
	offNext        = 20
	offCreated     = 28
	offFingerprint = 36
)

// Format is the version of the newest records that this version of the package reads and
// writes. A ledger that several nodes share is told, so that none of them adopts what
// it cannot read.
const Format = recordVersion

const (
	flagHeaders uint16 = 1 << iota
	flagGroup
	flagMaxLateness
	flagLease
	flagLastError
	flagClaimed  // the attempt was recorded before it was delivered
	flagChosenID // the caller chose the id; Lapse made it otherwise
	flagsKnown   = 1<<iota - 1
)

const (
	recPending uint8 = iota
	recParked
	recDead
	recExhausted
	recBuried
	recTopicDeleted
	recordStates // how many there are
)

var (
	errNewerRecord = errors.New("record of a newer version")
	errBadRecord   = errors.New("damaged record")
)

// fields is a record taken apart. Its slices point into the record.
type fields struct {
	state       uint8
	flags       uint16
	attempt     uint32
	revision    uint32
	due         int64
	next        int64
	created     int64
	fingerprint uint64
	topic       []byte
	headers     []byte // encoded pairs
	group       []byte
	maxLateness int64
	leaseRest   int64
	nonce       uint64
	lastError   []byte
	payload     []byte
}

// encode appends the record of f to dst. The flags of optional parts follow
// from the parts themselves.
func (f *fields) encode(dst []byte) []byte {
	flags := f.flags & (flagClaimed | flagChosenID | flagLease)
	set := func(on bool, flag uint16) {
		if on {
			flags |= flag
		}
	}
	set(len(f.headers) > 0, flagHeaders)
	set(len(f.group) > 0, flagGroup)
	set(f.maxLateness != 0, flagMaxLateness)
	set(len(f.lastError) > 0, flagLastError)

	le := binary.LittleEndian
	dst = append(dst, recordVersion, f.state)
	dst = le.AppendUint16(dst, flags)
	dst = le.AppendUint32(dst, f.attempt)
	dst = le.AppendUint32(dst, f.revision)
	dst = le.AppendUint64(dst, uint64(f.due))
	dst = le.AppendUint64(dst, uint64(f.next))
	dst = le.AppendUint64(dst, uint64(f.created))
	dst = le.AppendUint64(dst, f.fingerprint)
	dst = append(append(dst, byte(len(f.topic))), f.topic...)
	if flags&flagHeaders != 0 {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.headers))), f.headers...)
	}
	if flags&flagGroup != 0 {
		dst = append(append(dst, byte(len(f.group))), f.group...)
	}
	if flags&flagMaxLateness != 0 {
		dst = le.AppendUint64(dst, uint64(f.maxLateness))
	}
	if flags&flagLease != 0 {
		dst = le.AppendUint64(dst, uint64(f.leaseRest))
		dst = le.AppendUint64(dst, f.nonce)
	}
	if flags&flagLastError != 0 {
		dst = append(binary.AppendUvarint(dst, uint64(len(f.lastError))), f.lastError...)
	}
	return append(dst, f.payload...)
}

// decode takes a record apart. Errors: errNewerRecord, errBadRecord.
func decode(rec []byte) (f fields, err error) {
	if len(rec) == 0 {
		return f, fmt.Errorf("%w: empty", errBadRecord)
	}
	if rec[0] > recordVersion {
		return f, fmt.Errorf("%w: %d", errNewerRecord, rec[0])
	}
	if rec[0] != recordVersion || len(rec) < recordFixed+1 {
		return f, fmt.Errorf("%w: version %d, %d bytes", errBadRecord, rec[0], len(rec))
	}
	le := binary.LittleEndian
	f = fields{
		state:       rec[offState],
		flags:       le.Uint16(rec[offFlags:]),
		attempt:     le.Uint32(rec[offAttempt:]),
		revision:    le.Uint32(rec[offRevision:]),
		due:         int64(le.Uint64(rec[offDue:])),
		next:        int64(le.Uint64(rec[offNext:])),
		created:     int64(le.Uint64(rec[offCreated:])),
		fingerprint: le.Uint64(rec[offFingerprint:]),
	}
	if f.state >= recordStates || f.flags&^uint16(flagsKnown) != 0 {
		return f, fmt.Errorf("%w: state %d, flags %#x", errBadRecord, f.state, f.flags)
	}
	r := reader{rec: rec[recordFixed:]}
	f.topic = r.short()
	if f.flags&flagHeaders != 0 {
		f.headers = r.long()
		if _, err := decodeHeaders(f.headers); err != nil {
			return f, err
		}
	}
	if f.flags&flagGroup != 0 {
		f.group = r.short()
	}
	if f.flags&flagMaxLateness != 0 {
		f.maxLateness = int64(r.uint64())
	}
	if f.flags&flagLease != 0 {
		f.leaseRest = int64(r.uint64())
		f.nonce = r.uint64()
	}
	if f.flags&flagLastError != 0 {
		f.lastError = r.long()
	}
	if r.cut || len(f.topic) == 0 {
		return f, fmt.Errorf("%w: cut short", errBadRecord)
	}
	f.payload = r.rec
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
	n, size := binary.Uvarint(r.rec)
	if size <= 0 {
		r.cut, r.rec = true, nil
		return nil
	}
	r.rec = r.rec[size:]
	return r.take(n)
}

func (r *reader) uint64() uint64 {
	b := r.take(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// appendHeader appends one pair of a record's headers.
func appendHeader(dst []byte, name, value string) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
	return append(binary.AppendUvarint(dst, uint64(len(value))), value...)
}

// decodeHeaders is the reverse: nil for no headers.
func decodeHeaders(raw []byte) (map[string]string, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	headers := make(map[string]string)
	r := reader{rec: raw}
	for len(r.rec) > 0 {
		name, value := r.long(), r.long()
		if r.cut {
			return nil, fmt.Errorf("%w: headers cut short", errBadRecord)
		}
		headers[string(name)] = string(value)
	}
	return headers, nil
}

// The fields that the scheduler needs often are read and written in place.

func recordTopic(rec []byte) []byte {
	return rec[recordFixed+1 : recordFixed+1+int(rec[recordFixed])]
}

// recordGroup returns the group, nil if there is none. It takes a record that is not
// whole, such as that of a task which is still being looked up.
func recordGroup(rec []byte) []byte {
	if len(rec) <= recordFixed || recordFlags(rec)&flagGroup == 0 {
		return nil
	}
	r := reader{rec: rec[recordFixed:]}
	r.short() // the topic
	if recordFlags(rec)&flagHeaders != 0 {
		r.long()
	}
	return r.short()
}

func recordAttempt(rec []byte) uint32 {
	return binary.LittleEndian.Uint32(rec[offAttempt:])
}
func recordRevision(rec []byte) uint32 {
	return binary.LittleEndian.Uint32(rec[offRevision:])
}
func recordDue(rec []byte) int64  { return int64(binary.LittleEndian.Uint64(rec[offDue:])) }
func recordNext(rec []byte) int64 { return int64(binary.LittleEndian.Uint64(rec[offNext:])) }
func recordCreated(rec []byte) int64 {
	return int64(binary.LittleEndian.Uint64(rec[offCreated:]))
}
func recordFlags(rec []byte) uint16 { return binary.LittleEndian.Uint16(rec[offFlags:]) }
func recordFingerprint(rec []byte) uint64 {
	return binary.LittleEndian.Uint64(rec[offFingerprint:])
}
