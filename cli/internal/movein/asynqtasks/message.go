package asynqtasks

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// A message is a task as asynq keeps it, as far as it is needed.
type message struct {
	kind    string
	payload []byte
	headers map[string]string
	retry   int64 // at most
	retried int64
}

// Fields of asynq's TaskMessage.
const (
	fieldType    = 1
	fieldPayload = 2
	fieldRetry   = 5
	fieldRetried = 6
	fieldHeaders = 15
)

var errMessage = errors.New("asynq's message cannot be read")

// decode reads a message. Fields that it does not know are passed over.
func decode(b []byte) (m message, err error) {
	err = eachField(b, func(field protowire.Number, text []byte, number uint64) error {
		switch field {
		case fieldType:
			m.kind = string(text)
		case fieldPayload:
			m.payload = text
		case fieldRetry:
			m.retry = int64(number)
		case fieldRetried:
			m.retried = int64(number)
		case fieldHeaders:
			var name, value string
			err := eachField(text, func(field protowire.Number, text []byte, _ uint64) error {
				if field == 1 {
					name = string(text)
				} else {
					value = string(text)
				}
				return nil
			})
			if m.headers == nil {
				m.headers = make(map[string]string)
			}
			m.headers[name] = value
			return err
		}
		return nil
	})
	if err == nil && m.kind == "" {
		err = errMessage
	}
	return m, err
}

// eachField calls f for the fields of a message: with the bytes of those that have a length, and
// with the number of the others.
func eachField(b []byte, f func(field protowire.Number, text []byte, number uint64) error) error {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMessage
		}
		b = b[n:]
		var text []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(field, kind, b)
		}
		if n < 0 {
			return errMessage
		}
		b = b[n:]
		if err := f(field, text, number); err != nil {
			return err
		}
	}
	return nil
}
