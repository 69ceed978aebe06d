package layout

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// EntryLen is the length of a stored entry: the shard id and the nonce, 4 bytes each, big-endian.
// (As text it would need 16 bytes more.) An empty one, which is never stored, means that the id is
// not registered.
const EntryLen = 8

// AppendEntry appends the stored form of a directory entry.
func AppendEntry(dst []byte, f recovery.DirectoryEntry) []byte {
	if f == (recovery.DirectoryEntry{}) {
		return dst
	}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, uint32(f.ShardID)), f.Nonce)
}

// DecodeEntry reads a stored entry. It fails for any other length.
func DecodeEntry(value string) (recovery.DirectoryEntry, error) {
	switch len(value) {
	case 0:
		return recovery.DirectoryEntry{}, nil
	case EntryLen:
		n := binary.BigEndian.Uint64([]byte(value))
		return recovery.DirectoryEntry{ShardID: recovery.ShardID(n >> 32), Nonce: uint32(n)}, nil
	}
	return recovery.DirectoryEntry{}, fmt.Errorf("directory entry of %d bytes is unreadable", len(value))
}

// TimeLen is the length of the time in front of a record, big-endian. A pending record is stored as
// the time of its next attempt and its data. A dead one has the time of its death, the length of
// its label as 2 bytes, and its label in between.
const TimeLen = 8

// AppendPending appends the stored form of a pending record.
func AppendPending(dst []byte, at int64, data []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(at)), data...)
}

// DecodePending reads a pending record. It fails if the record is too short.
func DecodePending(value string) (at int64, data string, err error) {
	if len(value) < TimeLen {
		return 0, "", fmt.Errorf("a pending record of %d bytes cannot be read", len(value))
	}
	return int64(binary.BigEndian.Uint64([]byte(value[:TimeLen]))), value[TimeLen:], nil
}

// AppendDead appends the stored form of a dead record.
func AppendDead(dst []byte, at int64, label string, data []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(at))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(label)))
	return append(append(dst, label...), data...)
}

// DecodeDead reads a dead record. It fails if the record is too short.
func DecodeDead(value string) (at int64, label, data string, err error) {
	if len(value) >= TimeLen+2 {
		at = int64(binary.BigEndian.Uint64([]byte(value[:TimeLen])))
		n := int(binary.BigEndian.Uint16([]byte(value[TimeLen : TimeLen+2])))
		if rest := value[TimeLen+2:]; len(rest) >= n {
			return at, rest[:n], rest[n:], nil
		}
	}
	return 0, "", "", fmt.Errorf("a dead record of %d bytes cannot be read", len(value))
}

// AppendDeadRef appends a member of a dead index: label, a zero byte, the time of death as 16
// hexadecimal digits with its sign bit inverted, and the id. All have the same score, so Redis
// orders them by their bytes: by label, time and id.
func AppendDeadRef[ID ~string | ~[]byte](dst []byte, label string, at int64, id ID) []byte {
	dst = append(append(dst, label...), 0)
	dst = append(dst, fmt.Sprintf("%016x", uint64(at)^1<<63)...)
	return append(dst, id...)
}

// DecodeDeadRef reads a member of a dead index. It fails for any other text.
func DecodeDeadRef(member string) (label string, at int64, id string, err error) {
	label, rest, ok := strings.Cut(member, "\x00")
	if ok && len(rest) >= 16 {
		if n, err := strconv.ParseUint(rest[:16], 16, 64); err == nil {
			return label, int64(n ^ 1<<63), rest[16:], nil
		}
	}
	return "", 0, "", fmt.Errorf("the member %q of an index of dead tasks cannot be read", member)
}
