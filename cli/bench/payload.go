package bench

import (
	"bytes"
	"fmt"
	"strconv"
)

// A payload is {"n":"<round>-<number>","pad":"xxx"}: a round of two digits and a number of nine,
// which identify the delivered task. The number is a text because JSON has no leading zeros.
const (
	payloadHead  = `{"n":"`
	payloadPad   = `","pad":"`
	payloadTail  = `"}`
	numberDigits = 9

	// MinPayload is the size of a payload without padding, in bytes.
	MinPayload = len(payloadHead) + 3 + numberDigits + len(payloadPad) + len(payloadTail)

	maxRounds = 100
	maxTasks  = 999_999_999
)

// appendPayload appends a payload of so many bytes, at least MinPayload.
func appendPayload(dst []byte, round, number, size int) []byte {
	dst = fmt.Appendf(dst, `%s%02d-%09d%s`, payloadHead, round, number, payloadPad)
	for range size - MinPayload {
		dst = append(dst, 'x')
	}
	return append(dst, payloadTail...)
}

var numberKey = []byte(`"n":"`)

// parsePayload reads round and number. It reports false for any other payload.
func parsePayload(p []byte) (round, number int, ok bool) {
	at := bytes.Index(p, numberKey)
	if at < 0 {
		return 0, 0, false
	}
	p = p[at+len(numberKey):]
	if len(p) < 3+numberDigits || p[2] != '-' {
		return 0, 0, false
	}
	round, err := strconv.Atoi(string(p[:2]))
	if err != nil || round < 0 {
		return 0, 0, false
	}
	number, err = strconv.Atoi(string(p[3 : 3+numberDigits]))
	return round, number, err == nil && number >= 0
}
