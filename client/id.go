package client

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// NewID makes an id as the server does for a task without one: a UUIDv7 (RFC 9562).
// Ids made later sort behind earlier ones, by the millisecond.
func NewID() string {
	var u [16]byte
	_, _ = rand.Read(u[6:]) // it never fails: see crypto/rand
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(time.Now().UnixMilli()))
	copy(u[:6], ms[2:])
	u[6] = u[6]&0x0f | 0x70 // version 7
	u[8] = u[8]&0x3f | 0x80 // the variant of RFC 9562
	text := make([]byte, 0, 36)
	for i, part := range [][]byte{u[0:4], u[4:6], u[6:8], u[8:10], u[10:]} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, part)
	}
	return string(text)
}
