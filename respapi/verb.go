package respapi

import (
	"slices"
	"strings"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// A flag says something about a verb.
type flag uint16

const (
	needsTasks     flag = 1 << iota // it needs the scheduler
	writes                          // it changes keys
	fast                            // it takes the same time whatever there is
	pushes                          // it is about subscriptions
	blocks                          // it may wait
	noAuth                          // callers may use it who have not said who they are
	inSubscription                  // subscribers may use it, in version 2 of the protocol
	notQueued                       // MULTI does not queue it
	apart                           // it runs alone, also in a pipeline
	divides                         // what stands before it in a transaction is written first
	looks                           // it answers from its first argument, a key, by call.read
)

// A verb is a command that there is.
type verb struct {
	name  string
	arity int // how many arguments with the name; -n: at least n
	flags flag
	scope edge.Rights
	// Where the keys stand, as COMMAND tells it: the first, the last (negative: from the end), and
	// the step. 0: there are none.
	first, last, step int
	numbered          bool // the argument before the first key says how many there are
	run               func(*call)
	// set reads a command that sets a key whatever is there; nil: the verb does something else. It
	// answers and reports false if the command is none.
	set func(*call) (s setting, value []byte, ok bool)
	// batch answers commands of a pipeline; nil: each runs for itself.
	batch   func([]*call)
	repeats bool // several commands about one key may be in a batch
	parent  *verb
	subs    map[string]*verb // subcommands; nil: it has none
}

// together reports whether commands of a pipeline may run at the same time: the verb is about one
// key, which is its first argument, and nothing else.
func (v *verb) together() bool { return v.first == 1 && v.last == 1 && v.flags&apart == 0 }

// aboutKeys reports whether the verb is about the keys in its arguments: what else has some and
// needs the scheduler is about a stream.
func (v *verb) aboutKeys() bool {
	return v.first > 0 && v.flags&needsTasks != 0 && v.parent == nil && descriptions[v.name].group != "stream"
}

// isScript reports whether the verb runs a script.
func (v *verb) isScript() bool { return descriptions[v.name].group == "scripting" && v.numbered }

// keysOf returns those arguments of a command that are keys.
func (v *verb) keysOf(args [][]byte) (keys [][]byte) {
	last := v.last
	if last < 0 {
		last += len(args)
	}
	if v.numbered {
		n, _ := resp.ParseInt(args[v.first-1])
		last = v.first + int(min(max(n, 0), int64(len(args))))*max(v.step, 1) - 1
	}
	for i := v.first; i <= last && i < len(args); i += max(v.step, 1) {
		keys = append(keys, args[i])
	}
	return keys
}

// reads returns 1 for a verb that only reads, else 0.
func (v *verb) reads() int {
	if v.flags&writes == 0 {
		return 1
	}
	return 0
}

// tells reports whether the answer to a command may have what is stored, of whatever size.
func (v *verb) tells(args [][]byte) bool {
	switch {
	case v.flags&needsTasks == 0:
		return false
	case v.flags&writes == 0:
		return true
	}
	switch v.name {
	case "eval", "evalsha", "getset", "getex", "getdel", "xreadgroup", "xclaim", "xautoclaim":
		return true
	case "set": // with GET
		return slices.ContainsFunc(args[min(3, len(args)):], func(a []byte) bool { return is(a, "get") })
	}
	return false
}

// crowded reports whether clients have left so many answers unread that no more are made for this
// one. The answer under way does not count.
func (c *conn) crowded() bool { return c.held.made.Crowded() }

// takes reports whether the verb can have so many arguments, its name counted.
func (v *verb) takes(n int) bool { return n == v.arity || v.arity < 0 && n >= -v.arity }

// fullName returns the name as Redis shows it: config|get.
func (v *verb) fullName() string {
	if v.parent != nil {
		return v.parent.name + "|" + v.name
	}
	return v.name
}

// verbs are all verbs, by name in lower case.
var verbs map[string]*verb

// index returns verbs by name.
func index(list ...*verb) map[string]*verb {
	all := make(map[string]*verb, len(list))
	for _, v := range list {
		all[v.name] = v
		for _, sub := range v.subs {
			sub.parent = v
		}
	}
	return all
}

// lookup returns the verb of a command, nil if there is none.
func lookup(args [][]byte) *verb {
	v := find(verbs, args[0])
	if v != nil && v.subs != nil && len(args) > 1 {
		return find(v.subs, args[1])
	}
	return v
}

// find returns a verb by its name, in whatever letters.
func find(all map[string]*verb, name []byte) *verb {
	var lower [32]byte
	if len(name) > len(lower) {
		return nil
	}
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	return all[string(lower[:len(name)])]
}

// names returns the names of all verbs in order.
func names() []string {
	list := make([]string, 0, len(verbs))
	for n := range verbs {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

// is reports whether an argument is this word, in whatever letters.
func is(arg []byte, word string) bool { return strings.EqualFold(string(arg), word) }
