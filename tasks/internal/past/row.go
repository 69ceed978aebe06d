package past

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A value of a row: a version, uvarints (Scheduled, Delivered, Failed, Died, Cancelled, 1 if topics
// were left out, the greatest lateness in microseconds), and for each bucket of the lateness that
// is not empty its position and count.
const rowVersion = 1

var errRow = errors.New("a row of the past cannot be read")

func encode(m *task.PastMinute, cut bool) []byte {
	b := []byte{rowVersion}
	left := int64(0)
	if cut {
		left = 1
	}
	for _, n := range []int64{m.Scheduled, m.Delivered, m.Failed, m.Died, m.Cancelled, left, m.Lateness.Max.Microseconds()} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	for i, n := range m.Lateness.Counts {
		if n != 0 {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(i)), uint64(n))
		}
	}
	return b
}

func decode(b []byte) (m task.PastMinute, cut bool, err error) {
	if len(b) == 0 || b[0] != rowVersion {
		return m, false, errRow
	}
	b = b[1:]
	next := func() int64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			err, b = errRow, nil
			return 0
		}
		b = b[size:]
		return int64(n)
	}
	for _, n := range []*int64{&m.Scheduled, &m.Delivered, &m.Failed, &m.Died, &m.Cancelled} {
		*n = next()
	}
	cut = next() != 0
	m.Lateness.Max = time.Duration(next()) * time.Microsecond
	for len(b) > 0 {
		i := next()
		if n := next(); i >= 0 && i < int64(len(m.Lateness.Counts)) {
			m.Lateness.Counts[i] = n
		} else {
			err = errRow
		}
	}
	return m, cut, err
}
