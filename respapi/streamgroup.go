package respapi

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

const (
	errBadEntryID = "ERR Invalid stream ID specified as stream command argument"
	errKeyMissing = "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically."
	errBusyGroup  = "BUSYGROUP Consumer Group name already exists"

	// mostChanges is how often a change of a topic is tried if others change it at the same time.
	mostChanges = 10
)

// groupStream looks up the stream of a subcommand of XGROUP. It answers and reports false if there
// is none.
func (x *call) groupStream(create bool) (k streamKey, ok bool) {
	k, ok = x.stream(x.args[2])
	switch {
	case !ok:
		return k, false
	case k.topic == "" && create:
		x.out.Error("ERR keys of streams are " + streamPrefix + " and the name of a topic")
		return k, false
	case !k.exists && !create:
		x.out.Error(errKeyMissing)
		return k, false
	}
	return k, x.mayBeName("group", x.args[3])
}

// mayBeName answers and reports false if an argument is too long for the name of this, a group or a
// consumer.
func (x *call) mayBeName(of string, name []byte) bool {
	if len(name) > mostName {
		x.out.Error("ERR the name of a " + of + " must be at most " + strconv.Itoa(mostName) + " bytes long")
		return false
	}
	return true
}

// inGroup is groupStream for a group that must exist.
func (x *call) inGroup() (k streamKey, ok bool) {
	if k, ok = x.groupStream(false); ok && !k.group {
		x.out.Error("NOGROUP No such consumer group '" + string(x.args[3]) + "' for key name '" + k.name + "'")
		ok = false
	}
	return k, ok
}

// groupOptions reads the options from an argument on. It answers and reports false if they are
// wrong.
func (x *call) groupOptions(from int, mkstream *bool) bool {
	for i := from; i < len(x.args); i++ {
		switch {
		case mkstream != nil && is(x.args[i], "mkstream"):
			*mkstream = true
		case is(x.args[i], "entriesread") && i+1 < len(x.args):
			i++
			n, ok := x.number(x.args[i], errNotInteger)
			switch {
			case !ok:
				return false
			case n < -1:
				x.out.Error("ERR value for ENTRIESREAD must be positive or -1")
				return false
			}
		default:
			x.out.Error("ERR unknown subcommand or wrong number of arguments for '" + cut(x.args[1], 128) + "'. Try XGROUP HELP.")
			return false
		}
	}
	return true
}

// startID answers and reports false if an argument is not where a group can start. It is not used:
// a group starts with what is ready.
func (x *call) startID(arg []byte) bool {
	if string(arg) == "$" {
		return true
	}
	if _, ok := parseEntryID(arg, 0); !ok {
		x.out.Error(errBadEntryID)
		return false
	}
	return true
}

// runGroupCreate answers XGROUP CREATE key group id [MKSTREAM] [ENTRIESREAD n]: the topic is pulled
// from now on.
func runGroupCreate(x *call) {
	mkstream := false
	if !x.groupOptions(5, &mkstream) {
		return
	}
	k, ok := x.groupStream(mkstream)
	if !ok || !x.startID(x.args[4]) {
		return
	}
	for range mostChanges {
		kind := k.topics.Settings.Kind
		switch {
		case k.group:
			x.out.Error(errBusyGroup)
			return
		case kind != KindKeyevent && kind != tasks.Pull:
			x.out.Error("ERR the topic '" + k.topic + "' is delivered by " + string(kind) + ", and so it has no group")
			return
		}
		if done, again := x.changeKind(&k, tasks.Pull); done {
			t := x.c.server.streams.add(k.topic)
			t.mu.Lock()
			t.group = string(x.args[3])
			t.mu.Unlock()
			x.out.OK()
			return
		} else if !again {
			return
		}
	}
	x.fail(tasks.ErrContended)
}

// runGroupDestroy answers XGROUP DESTROY key group: the topic's expiries go to subscribers again.
func runGroupDestroy(x *call) {
	k, ok := x.groupStream(false)
	if !ok {
		return
	}
	for range mostChanges {
		if !k.group {
			x.out.Int(0)
			return
		}
		if done, again := x.changeKind(&k, KindKeyevent); done {
			x.c.server.streams.forget(k.topic)
			x.out.Int(1)
			return
		} else if !again {
			return
		}
	}
	x.fail(tasks.ErrContended)
}

// changeKind changes the kind of a topic whose settings are those of k. If they have changed
// meanwhile, k has the new ones, and it reports again. It answers other errors.
func (x *call) changeKind(k *streamKey, kind tasks.Kind) (done, again bool) {
	_, err := x.scheduler().ChangeTopic(x.ctx, k.topic, k.topics.Revision, func(s *tasks.TopicSettings) error {
		s.Kind, s.Delivery = kind, nil
		return nil
	})
	if errors.Is(err, tasks.ErrRevision) {
		err = k.load(x)
		again = err == nil
	}
	if err != nil {
		x.fail(err)
		return false, false
	}
	return !again, again
}

// runGroupSetID answers XGROUP SETID key group id [ENTRIESREAD n]. It changes nothing: a group has
// no position, its entries are those that are not acknowledged.
func runGroupSetID(x *call) {
	if !x.groupOptions(5, nil) {
		return
	}
	if _, ok := x.inGroup(); ok && x.startID(x.args[4]) {
		x.out.OK()
	}
}

// runGroupCreateConsumer answers XGROUP CREATECONSUMER key group consumer.
func runGroupCreateConsumer(x *call) {
	k, ok := x.inGroup()
	if !ok {
		return
	}
	if _, fresh, ok := x.consumer(&k, x.args[4]); ok {
		x.out.Flag(fresh)
	}
}

// consumer returns the stream, and whether the consumer was not known before. It answers and
// reports false if it cannot be one.
func (x *call) consumer(k *streamKey, name []byte) (t *stream, fresh, ok bool) {
	if !x.mayBeName("consumer", name) {
		return nil, false, false
	}
	t = x.c.server.streams.add(k.topic)
	now := time.Now()
	t.lock(now)
	c, fresh := t.consumerLocked(string(name), now)
	t.mu.Unlock()
	if c == nil {
		x.out.Error("OOM the stream has too many consumers at this node")
		return nil, false, false
	}
	return t, fresh, true
}

// runGroupDelConsumer answers XGROUP DELCONSUMER key group consumer: the entries of the consumer
// are ready again, and their attempts count.
func runGroupDelConsumer(x *call) {
	k, ok := x.inGroup()
	if !ok {
		return
	}
	t := x.c.server.streams.of(k.topic)
	if t == nil {
		x.out.Int(0)
		return
	}
	name := string(x.args[4])
	t.lock(time.Now())
	mine := t.outLocked(entryID{}, func(e *outEntry) bool { return e.consumer.name == name })
	t.mu.Unlock()
	var atOnce time.Duration
	again := tasks.Verdict{Verb: tasks.Release, Delay: &atOnce, Reason: "the consumer was deleted"}
	_, err := x.c.server.settle(x.ctx, t, again, settlings(mine), nil)
	if err != nil {
		x.fail(err)
		return
	}
	t.mu.Lock()
	if c := t.consumers[name]; c != nil && c.out == 0 {
		delete(t.consumers, name)
	}
	t.mu.Unlock()
	x.out.Int(int64(len(mine)))
}

// runGroupHelp answers XGROUP HELP.
func runGroupHelp(x *call) {
	x.help(
		"XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"CREATE <key> <groupname> <id|$> [option]",
		"    Create a new consumer group. Options are:",
		"    * MKSTREAM",
		"      Create the empty stream if it does not exist.",
		"    * ENTRIESREAD entries_read",
		"      Set the group's entries_read counter (internal use).",
		"CREATECONSUMER <key> <groupname> <consumer>",
		"    Create a new consumer in the specified group.",
		"DELCONSUMER <key> <groupname> <consumer>",
		"    Remove the specified consumer.",
		"DESTROY <key> <groupname>",
		"    Remove the specified group.",
		"SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
		"    Set the current group ID and entries_read counter.",
	)
}

// counted returns a count of entries that is not larger than an answer may be.
func counted(n int64) int {
	if n <= 0 || n > tasks.MaxReserve {
		return tasks.MaxReserve
	}
	return int(min(n, math.MaxInt32))
}
