package diskledger

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// The layout, version 1. All keys begin with a letter that names their kind:
//
//	kind     key                                   value
//	pending  'p' time id                           record
//	dead     'd' id                                time label
//	record   'x' escaped-label 0x00 0x01 time id   record of a dead task
//	setting  's' name                              revision 0x01 value, or
//	                                               revision 0x00 (deleted; of before)
//	         's' '!'                               revision 0x00: the highest one of
//	                                               those that were deleted
//	row      'r' series period part 0x00 time name  value of a row, see recovery.Archive;
//	                                               series is its code, period when that began
//
// time is 8 bytes: Unix milliseconds, two's complement, big-endian, with the sign bit flipped, so
// that keys sort as times do (negative ones first). revision is 8 bytes, big-endian. id, label,
// name and record are the caller's bytes. In an escaped label each 0x00 is replaced by 0x00 0xFF,
// so that labels sort as they are and the dead records of a label are neighbours.
//
// The record of a dead task is among those of its label; the value of its 'dead' key has the rest
// of that key. For example, task "a" that is due at 1 ms has the key
//
//	70 80 00 00 00 00 00 00 01 61
//
// What is not in a table yet is in the journal, a frame for each batch: see draft. The store writes
// no log of its own.
//
// A new version gets a new number in the file LAPSE. A ledger that finds another number than its
// own refuses to be adopted.
const layoutVersion = 1

// The kinds of keys.
const (
	kindDead       = 'd'
	kindPending    = 'p'
	kindRow        = 'r'
	kindSetting    = 's'
	kindDeadRecord = 'x'
)

const timeLen = 8

func appendTime(k []byte, at int64) []byte {
	return binary.BigEndian.AppendUint64(k, uint64(at)^1<<63)
}

func decodeTime(b []byte) int64 {
	return int64(binary.BigEndian.Uint64(b) ^ 1<<63)
}

// appendPending appends the key of a pending record. Without an id it is the
// lower bound of that millisecond.
func appendPending[S ~string | ~[]byte](k []byte, at int64, id S) []byte {
	return append(appendTime(append(k, kindPending), at), id...)
}

func decodePending(k []byte) (at int64, id []byte, err error) {
	if len(k) < 1+timeLen || k[0] != kindPending {
		return 0, nil, fmt.Errorf("not the key of a pending record: %x", k)
	}
	return decodeTime(k[1:]), k[1+timeLen:], nil
}

func appendDead[S ~string | ~[]byte](k []byte, id S) []byte {
	return append(append(k, kindDead), id...)
}

// appendWhere appends the value of a dead key: the place of the dead record.
func appendWhere(v []byte, at int64, label string) []byte {
	return append(appendTime(v, at), label...)
}

func decodeWhere(v []byte) (at int64, label string, err error) {
	if len(v) < timeLen {
		return 0, "", fmt.Errorf("not the place of a dead record: %x", v)
	}
	return decodeTime(v), string(v[timeLen:]), nil
}

// appendDeadLabel appends the common prefix of the keys of a label's dead records.
func appendDeadLabel(k []byte, label string) []byte {
	k = append(k, kindDeadRecord)
	for i := range len(label) {
		if k = append(k, label[i]); label[i] == 0 {
			k = append(k, 0xFF)
		}
	}
	return append(k, 0, 1)
}

func appendDeadRecord[S ~string | ~[]byte](k []byte, label string, at int64, id S) []byte {
	return append(appendTime(appendDeadLabel(k, label), at), id...)
}

func decodeDeadRecord(k []byte) (label string, at int64, id []byte, err error) {
	bad := fmt.Errorf("not the key of a dead record: %x", k)
	if len(k) == 0 || k[0] != kindDeadRecord {
		return "", 0, nil, bad
	}
	var name []byte
	for rest := k[1:]; ; {
		zero := bytes.IndexByte(rest, 0)
		if zero < 0 || zero+1 >= len(rest) {
			return "", 0, nil, bad
		}
		name = append(name, rest[:zero]...)
		mark := rest[zero+1]
		rest = rest[zero+2:]
		switch {
		case mark == 0xFF:
			name = append(name, 0)
		case mark == 1 && len(rest) >= timeLen:
			return string(name), decodeTime(rest), rest[timeLen:], nil
		default:
			return "", 0, nil, bad
		}
	}
}

func appendSetting(k []byte, name string) []byte {
	return append(append(k, kindSetting), name...)
}

// deletedName is the name of no setting. New settings begin above its revision, so that a name's
// revisions only grow although nothing is left of deleted ones.
const deletedName = "!"

// appendRowPart appends the common prefix of the keys of a part's rows in one period.
func appendRowPart(k []byte, s recovery.Series, period int64, part string) []byte {
	k = appendTime(append(k, kindRow, s.Code), period)
	return append(append(k, part...), 0)
}

func appendRow(k []byte, s recovery.Series, period int64, part string, at int64, name string) []byte {
	return append(appendTime(appendRowPart(k, s, period, part), at), name...)
}

// decodeRow reads what follows the prefix of a row's part.
func decodeRow(k []byte) (r recovery.Row, err error) {
	if len(k) < timeLen {
		return r, fmt.Errorf("not the key of a row: %x", k)
	}
	return recovery.Row{At: time.UnixMilli(decodeTime(k)).UTC(), Name: string(k[timeLen:])}, nil
}

const revisionLen = 8

func encodeSetting(revision int64, value []byte) []byte {
	v := binary.BigEndian.AppendUint64(nil, uint64(revision))
	if value == nil {
		return append(v, 0)
	}
	return append(append(v, 1), value...)
}

// decodeSetting returns a nil value for a deleted setting.
func decodeSetting(v []byte) (revision int64, value []byte, err error) {
	if len(v) <= revisionLen || v[revisionLen] > 1 || v[revisionLen] == 0 && len(v) > revisionLen+1 {
		return 0, nil, fmt.Errorf("not a setting: %x", v)
	}
	revision = int64(binary.BigEndian.Uint64(v))
	if v[revisionLen] == 1 {
		value = append([]byte{}, v[revisionLen+1:]...)
	}
	return revision, value, nil
}

// after is the lowest key above all that begin with prefix, whose last byte
// must not be 0xFF.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	end[len(end)-1]++
	return end
}
