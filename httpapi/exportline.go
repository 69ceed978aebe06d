package httpapi

import (
	"encoding/base64"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// This file writes and reads the lines of tasks in exports.

// fitsLine reports whether a payload can stand in a line as it is, and be read from there byte for
// byte: JSON in one line, without a space before or behind it.
func fitsLine(payload []byte) bool {
	for _, c := range payload {
		if c == '\n' || c == '\r' {
			return false
		}
	}
	first, last := payload[0], payload[len(payload)-1]
	return first != ' ' && first != '\t' && last != ' ' && last != '\t' && isJSON(payload)
}

// appendOptional appends a comma and a field, unless it is empty.
func appendOptional(text []byte, name, value string) []byte {
	if value == "" {
		return text
	}
	return appendText(append(text, ','), name, value)
}

// appendText appends a field. Nearly all values need no escapes.
func appendText(text []byte, name, value string) []byte {
	text = append(append(append(text, '"'), name...), `":`...)
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := plainJSON(value)
			return append(text, quoted...)
		}
	}
	return append(append(append(text, '"'), value...), '"')
}

func appendTime(text []byte, name string, at time.Time) []byte {
	text = append(append(append(text, '"'), name...), `":"`...)
	return append(at.UTC().AppendFormat(text, instantLayout), '"')
}

// appendCreated appends a comma and the time of creation, to the nanosecond: with its id it tells a
// task from all others. A task that was imported from elsewhere may have whole milliseconds.
func appendCreated(text []byte, at time.Time) []byte {
	layout := instantLayout
	if at.Nanosecond()%int(time.Millisecond) != 0 {
		layout = "2006-01-02T15:04:05.000000000Z"
	}
	return append(at.UTC().AppendFormat(append(text, `,"created_at":"`...), layout), '"')
}

// appendHex appends a comma and a field with 16 hexadecimal digits.
func appendHex(text []byte, name string, v uint64) []byte {
	text = append(append(append(text, `,"`...), name...), `":"`...)
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		text = append(text, digits[v>>shift&15])
	}
	return append(text, '"')
}

// An exportedLine is a line of an export.
type exportedLine struct {
	kind     string
	version  int
	task     tasks.Exported // its Topic is also that of a topic
	settings tasks.TopicSettings
}

// read reads a line.
func (x *exportedLine) read(s *scanner) {
	t := &x.task
	t.State = tasks.Pending
	seen, to := 0, ""
	var r tasks.Request
	for key := range s.object("") {
		name := string(key)
		switch name {
		case "type":
			x.readKind(s)
		case "version":
			x.version = s.integer(name, 1, 1<<30)
		case "settings":
			s.settings(&x.settings)
		case "id":
			r.ID = s.str(name)
		case "due_at":
			r.Due = s.instant(name)
			seen |= 1
		case "next_at":
			t.Next = s.instant(name)
			seen |= 2
		case "created_at":
			t.Created = s.instant(name)
			seen |= 4
		case "held_at":
			t.HeldAt = s.instant(name)
		case "died_at":
			t.Died = s.instant(name)
			seen |= 2
		case "finished_at":
			t.Finished = s.instant(name)
			seen |= 2
		case "reason":
			t.Reason = tasks.Reason(s.str(name))
		case "outcome":
			t.Outcome = tasks.Outcome(s.str(name))
		case "attempt":
			t.Attempt = s.integer(name, 0, 1<<32-1)
		case "revision":
			t.Revision = int64(s.integer(name, 1, 1<<32-1))
		case "fingerprint":
			t.Fingerprint = s.hex(name)
			seen |= 8
		case "stamp":
			t.Stamp = s.hex(name)
		case "last_error":
			t.LastError = s.str(name)
		case "attempts":
			x.readAttempts(s)
		case "delivers_to":
			to = s.str(name)
		case "payload_base64":
			r.Payload = s.base64(name)
		case "exported_at", "cursor", "begins", "topics", "tasks", "dead", "finished", "unreadable":
			s.skip() // of the first line and of the last ones
		default:
			s.content(key, &r)
		}
	}
	t.Fill(&r)
	if to != "" && t.Target == nil {
		t.Target = &tasks.Target{}
	}
	if t.Target != nil {
		t.Target.Receiver = to
	}
	x.check(s, seen)
}

// readKind reads the type of a line.
func (x *exportedLine) readKind(s *scanner) {
	switch x.kind = s.str("type"); x.kind {
	case lineDead:
		x.task.State = tasks.Dead
	case lineFinished:
		x.task.State = tasks.Finished
	case lineHead, lineTopic, lineTask, lineNext, lineEnd:
	default:
		s.fault("type", "must be lapse_export, topic, task, dead, finished, next or end")
	}
}

// check refuses a task that lacks a field without which it would be another one.
func (x *exportedLine) check(s *scanner, seen int) {
	if s.err != nil || len(s.faults) > 0 {
		return
	}
	if x.kind == lineTask && !x.task.HeldAt.IsZero() {
		x.task.State = tasks.Held
	}
	switch x.kind {
	case "":
		s.fault("type", "must be given")
	case lineTask, lineDead, lineFinished:
		end := map[string]string{lineTask: "next_at", lineDead: "died_at", lineFinished: "finished_at"}[x.kind]
		for i, field := range []string{"due_at", end, "created_at", "fingerprint"} {
			if seen&(1<<i) == 0 {
				s.fault(field, "must be given")
			}
		}
	}
}

// readAttempts reads the failed attempts of a task.
func (x *exportedLine) readAttempts(s *scanner) {
	for i := range s.array("attempts") {
		if i >= tasks.MaxAttempts {
			s.fault("attempts", "must be at most "+strconv.Itoa(tasks.MaxAttempts))
			s.skip()
			continue
		}
		var a tasks.Attempt
		s.within = "attempts."
		for key := range s.object("") {
			switch name := string(key); name {
			case "attempt":
				a.Number = s.integer(name, 1, 1<<32-1)
			case "at":
				a.Ended = s.instant(name)
			case "duration":
				a.Took = s.duration(name)
			case "by":
				a.By = s.str(name)
			case "outcome":
				a.Outcome = tasks.AttemptOutcome(s.str(name))
			case "error":
				a.Error = s.str(name)
			default:
				s.unknown(key)
			}
		}
		s.within = ""
		x.task.Attempts = append(x.task.Attempts, a)
	}
}

// hex reads 16 hexadecimal digits.
func (s *scanner) hex(field string) uint64 {
	const digits = 16
	text := s.str(field)
	v, err := strconv.ParseUint(text, 16, 64)
	if s.err == nil && (err != nil || len(text) != digits) {
		s.fault(field, "must be 16 hexadecimal digits")
	}
	return v
}

// base64 reads bytes.
func (s *scanner) base64(field string) []byte {
	raw, err := base64.StdEncoding.DecodeString(s.str(field))
	if err != nil {
		s.fault(field, "must be base64")
	}
	return raw
}
