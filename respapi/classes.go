package respapi

import (
	"strings"

	"github.com/lapsehq/lapse/respapi/internal/glob"
)

// Classes of events, as notify-keyspace-events has them.
type classes uint32

const (
	classGeneric classes = 1 << iota // g: del, expire, persist, rename_from, rename_to, copy_to
	classString                      // $: set, incrby, append and the like
	classList                        // l: there are none
	classSet                         // s: none
	classHash                        // h: none
	classSorted                      // z: none
	classExpired                     // x: expired
	classEvicted                     // e: none
	classStream                      // t: none
	classModule                      // d: none
	classNew                         // n: new; as in Redis, A is without it
	toKeyspace                       // K: events go to __keyspace@0__:<key>
	toKeyevent                       // E: events go to __keyevent@0__:<event>
	classMiss                        // m: none

	// anyMessage stands for what PUBLISH sends, where nodes tell one another what they want.
	anyMessage

	// eventReceiver and keyReceiver stand likewise for subscribers whose reading settles expiries:
	// of the channel of an event, and of channels of keys.
	eventReceiver
	keyReceiver
	anyReceiver = eventReceiver | keyReceiver

	// classAll is A.
	classAll = classGeneric | classString | classList | classSet | classHash | classSorted | classExpired | classEvicted | classStream | classModule
	// events are the classes of events that there are.
	events = classGeneric | classString | classExpired | classNew

	// classLetters stand in the order of the constants, which is that of Redis' answers.
	classLetters = "g$lshzxetdnKEm"
)

const (
	keyspacePrefix = "__keyspace@0__:"
	keyeventPrefix = "__keyevent@0__:"
	expiredEvent   = "expired"
)

// parseClasses reads the classes that the text names. It reports false if a letter is none.
func parseClasses(text string) (all classes, ok bool) {
	for _, letter := range []byte(text) {
		i := strings.IndexByte(classLetters, letter)
		switch {
		case letter == 'A':
			all |= classAll
		case i < 0:
			return 0, false
		default:
			all |= 1 << i
		}
	}
	return all, true
}

// String returns the classes in the order of Redis, which leaves out n beside A.
func (c classes) String() string {
	var b strings.Builder
	if c&classAll == classAll {
		b.WriteByte('A')
		c &^= classAll | classNew
	}
	for i := range len(classLetters) {
		if c&(1<<i) != 0 {
			b.WriteByte(classLetters[i])
		}
	}
	return b.String()
}

// eventNames are the events that there are, by class.
var eventNames = map[string]classes{
	"del": classGeneric, "expire": classGeneric, "persist": classGeneric, "rename_from": classGeneric, "rename_to": classGeneric, "copy_to": classGeneric,
	"set": classString, "append": classString, "incrby": classString, "incrbyfloat": classString, "setrange": classString,
	expiredEvent: classExpired,
	"new":        classNew,
}

// A want says which events a channel or a pattern may hear.
type want struct {
	keyevent classes // events with a channel of their own, by class
	keyspace bool    // channels of keys
	receives classes // eventReceiver or keyReceiver, if what it hears of expired keys is received
}

// wantOf returns what the subscribers of a channel, or of a pattern, may hear. pattern is nil for a
// channel. A pattern that does not name the channels of keys, such as *, is that of a monitor,
// which must not take the events of workers.
func wantOf(name string, pattern *glob.Pattern) (w want) {
	if pattern == nil {
		if event, ok := strings.CutPrefix(name, keyeventPrefix); ok {
			w.keyevent = eventNames[event]
		}
		w.keyspace = strings.HasPrefix(name, keyspacePrefix)
		switch {
		case w.keyevent&classExpired != 0:
			w.receives = eventReceiver
		case w.keyspace:
			w.receives = keyReceiver
		}
		return w
	}
	for event, class := range eventNames {
		if pattern.Match(keyeventPrefix + event) {
			w.keyevent |= class
		}
	}
	start := literal(name)
	w.keyspace = strings.HasPrefix(start, keyspacePrefix) || strings.HasPrefix(keyspacePrefix, start)
	switch {
	case w.keyevent&classExpired != 0 && strings.HasPrefix(start, "__keyevent"):
		w.receives = eventReceiver
	case w.keyspace && strings.HasPrefix(start, "__keyspace"):
		w.receives = keyReceiver
	}
	return w
}

// literal returns the beginning of a pattern that stands for itself.
func literal(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}
