package respapi

import (
	"bytes"
	"cmp"
	"container/heap"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// Each topic is a stream: its entries are the tasks that are ready. It has one queue, of which
// every name of a group is a name.

const (
	// mostConsumers is how many consumers a node knows of one stream.
	mostConsumers = 100_000
	// mostName is how long the name of a group or a consumer is at most, in bytes.
	mostName = 512
	// restingConsumer is how long a consumer without entries is known at least.
	restingConsumer = time.Minute
)

// An entryID is the id of an entry: the task's deadline in milliseconds, and a number made from the
// task's id. All deliveries of a task have the same.
type entryID struct{ ms, seq uint64 }

var lastEntryID = entryID{math.MaxUint64, math.MaxUint64}

// entryIDOf returns the id of a task's entry. seq stays below 2^63, for clients without unsigned
// integers.
func entryIDOf(t *tasks.Task) entryID {
	return entryID{uint64(t.Due.UnixMilli()), xxhash.Sum64String(t.ID) & math.MaxInt64}
}

func (i entryID) compare(o entryID) int {
	return cmp.Or(cmp.Compare(i.ms, o.ms), cmp.Compare(i.seq, o.seq))
}

func (i entryID) String() string {
	return strconv.FormatUint(i.ms, 10) + "-" + strconv.FormatUint(i.seq, 10)
}

// next returns the id after this one. It reports false if there is none.
func (i entryID) next() (entryID, bool) {
	if i.seq++; i.seq == 0 {
		i.ms++
	}
	return i, i != entryID{}
}

// previous returns the id before this one. It reports false if there is none.
func (i entryID) previous() (entryID, bool) {
	if i == (entryID{}) {
		return i, false
	}
	if i.seq--; i.seq == math.MaxUint64 {
		i.ms--
	}
	return i, true
}

// parseEntryID reads an id: ms-seq, or only ms, and then seq is missing.
func parseEntryID(text []byte, missing uint64) (id entryID, ok bool) {
	ms, seq, both := bytes.Cut(text, []byte{'-'})
	if id.ms, ok = parseUint(ms); !ok {
		return id, false
	}
	if id.seq = missing; both {
		id.seq, ok = parseUint(seq)
	}
	return id, ok
}

func parseUint(text []byte) (uint64, bool) {
	if len(text) > 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(text), 10, 64)
	return n, err == nil
}

// parseBound reads an end of a range. Like parseEntryID, and also -, + and (id.
func parseBound(text []byte, missing uint64) (id entryID, exclusive, ok bool) {
	switch string(text) {
	case "-":
		return entryID{}, false, true
	case "+":
		return lastEntryID, false, true
	}
	rest, exclusive := bytes.CutPrefix(text, []byte{'('})
	id, ok = parseEntryID(rest, missing)
	return id, exclusive, ok
}

// streams are the entries that this node has handed out, by topic.
type streams struct {
	mu      sync.Mutex // guards byTopic
	byTopic map[string]*stream
}

// A stream has the entries of one topic that are out: a consumer has them, and neither were they
// acknowledged nor has their lease ended.
type stream struct {
	topic string

	mu        sync.Mutex // guards what follows
	group     string     // the name by which the group was called last
	entries   map[entryID]*outEntry
	ends      leases
	consumers map[string]*consumer
	last      entryID // the greatest that was handed out
	read      int64   // entries that were handed out
}

// A consumer is a receiver by the name that it gave.
type consumer struct {
	name string
	out  int       // entries
	seen time.Time // when it asked for entries last
}

// An outEntry is a task that is out.
type outEntry struct {
	id         entryID
	task       string // id of the task
	receipt    string
	consumer   *consumer
	since      time.Time // when the consumer got it
	deliveries int64
	until      time.Time // end of its lease
	index      int       // in leases
	claimed    bool      // a claim of it is under way
}

// leases are the entries that are out, as a heap: that whose lease ends first is the root.
type leases []*outEntry

func (l leases) Len() int           { return len(l) }
func (l leases) Less(i, j int) bool { return l[i].until.Before(l[j].until) }
func (l leases) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}
func (l *leases) Push(e any) {
	e.(*outEntry).index = len(*l)
	*l = append(*l, e.(*outEntry))
}
func (l *leases) Pop() any {
	last := len(*l) - 1
	e := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return e
}

// of returns the stream of a topic; nil if this node has handed nothing out.
func (s *streams) of(topic string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTopic[topic]
}

// add returns the stream of a topic whose group exists.
func (s *streams) add(topic string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.byTopic[topic]
	if t == nil {
		t = &stream{topic: topic, entries: make(map[entryID]*outEntry), consumers: make(map[string]*consumer)}
		if s.byTopic == nil {
			s.byTopic = make(map[string]*stream)
		}
		s.byTopic[topic] = t
	}
	return t
}

// forget forgets the stream of a topic.
func (s *streams) forget(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byTopic, topic)
}

// lock locks the stream, and drops the entries whose leases have ended.
func (t *stream) lock(now time.Time) {
	t.mu.Lock()
	for len(t.ends) > 0 && !t.ends[0].until.After(now) {
		t.dropLocked(t.ends[0])
	}
}

// dropLocked takes an entry out.
func (t *stream) dropLocked(e *outEntry) {
	heap.Remove(&t.ends, e.index)
	delete(t.entries, e.id)
	e.consumer.out--
	e.index = -1
}

// consumerLocked returns a consumer, and whether it is new. It is nil if there are too many.
func (t *stream) consumerLocked(name string, now time.Time) (c *consumer, fresh bool) {
	if c = t.consumers[name]; c != nil {
		return c, false
	}
	if len(t.consumers) >= mostConsumers {
		for n, c := range t.consumers {
			if c.out == 0 && now.Sub(c.seen) > restingConsumer {
				delete(t.consumers, n)
			}
		}
		if len(t.consumers) >= mostConsumers {
			return nil, false
		}
	}
	c = &consumer{name: name, seen: now}
	t.consumers[name] = c
	return c, true
}

// handOut notes that a consumer has got tasks, and returns the ids of their entries.
func (t *stream) handOut(name string, ds []tasks.Delivery) []entryID {
	fresh := make([]*outEntry, len(ds))
	ids := make([]entryID, len(ds))
	for i := range ds {
		d := &ds[i]
		ids[i] = entryIDOf(&d.Task)
		fresh[i] = &outEntry{id: ids[i], task: d.ID, receipt: d.Receipt(), deliveries: int64(d.Attempt), until: d.LeaseUntil}
	}
	now := time.Now()
	t.lock(now)
	defer t.mu.Unlock()
	c := t.consumers[name]
	if c == nil { // it was forgotten while it waited
		c = &consumer{name: name}
		t.consumers[name] = c
	}
	c.seen = now
	for _, e := range fresh {
		if before := t.entries[e.id]; before != nil {
			t.dropLocked(before)
		}
		e.consumer, e.since = c, now
		c.out++
		t.entries[e.id] = e
		heap.Push(&t.ends, e)
		if e.id.compare(t.last) > 0 {
			t.last = e.id
		}
	}
	t.read += int64(len(ds))
	return ids
}

// A streamKey is a key that may be a stream.
type streamKey struct {
	name   string
	topic  string // "" if the key is none of a stream
	topics task.Topic
	exists bool // the stream
	group  bool // its group
}

// topicOfStream returns the topic of a stream's key, "" if it is none.
func topicOfStream(key []byte) string {
	topic, ok := bytes.CutPrefix(key, []byte(streamPrefix))
	if !ok || len(topic) > 512 || !task.ValidName(string(topic)) {
		return ""
	}
	return string(topic)
}

// stream looks a key up. It answers and reports false if the caller may not use it, if it is the
// key of a string, or if nothing is known of it.
func (x *call) stream(name []byte) (k streamKey, ok bool) {
	k = streamKey{name: string(name), topic: topicOfStream(name)}
	if k.topic == "" {
		return k, x.isNoString(name)
	}
	if !x.granted(k.topic) {
		return k, false
	}
	err := k.load(x)
	if err == nil && !k.group && len(x.scheduler().Peers()) > 0 {
		// Another node may just have changed the settings. An error makes ChangeTopic read them.
		_, _ = x.scheduler().ChangeTopic(x.ctx, k.topic, -1, func(*tasks.TopicSettings) error { return errUnchanged })
		err = k.load(x)
	}
	if err != nil {
		x.fail(err)
		return k, false
	}
	if !k.exists {
		_, k.exists = x.c.server.hasKeys[k.topic]
	}
	return k, true
}

// errUnchanged leaves the settings of a topic as they are.
var errUnchanged = errors.New("nothing to change")

// load reads what this node knows of the topic.
func (k *streamKey) load(x *call) (err error) {
	k.topics, err = x.scheduler().Topic(k.topic)
	if errors.Is(err, tasks.ErrNoTopic) {
		k.topics, err = task.Topic{Settings: tasks.TopicSettings{Kind: tasks.Pull}}, nil
	} else {
		k.exists = err == nil
	}
	k.group = k.topics.Revision != 0 && k.topics.Settings.Kind == tasks.Pull
	return err
}

// granted answers and reports false if the caller may not use a topic.
func (x *call) granted(topic string) bool {
	if x.c.caller.MayUse(topic) {
		return true
	}
	x.fail(tasks.ErrNotGranted)
	return false
}

// isNoString answers and reports false if a key that is none of a stream exists.
func (x *call) isNoString(name []byte) bool {
	if _, ok := x.c.server.topicOf(name); !ok {
		return true
	}
	k, ok := x.key(name)
	if !ok {
		return false
	}
	t, err := x.found(x.ctx, &k)
	switch {
	case errors.Is(err, errOtherTopic):
	case err != nil:
		x.fail(err)
		return false
	case isLive(&t):
		x.out.Error(errWrongType)
		return false
	}
	return true
}

// noGroup answers that the key has no such group.
func (x *call) noGroup(key string, group []byte, more string) {
	x.out.Error("NOGROUP No such key '" + key + "' or consumer group '" + string(group) + "'" + more)
}

// withGroup looks up the stream and the group that a command begins with. It answers and reports
// false if they do not exist.
func (x *call) withGroup() (k streamKey, ok bool) {
	if k, ok = x.stream(x.args[1]); ok && !k.group {
		x.noGroup(k.name, x.args[2], "")
	}
	return k, ok && k.group
}

// outLocked returns the entries not before a bound that in reports true for, in order.
func (t *stream) outLocked(from entryID, in func(*outEntry) bool) []*outEntry {
	var list []*outEntry
	for _, e := range t.entries {
		if e.id.compare(from) >= 0 && in(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *outEntry) int { return a.id.compare(b.id) })
	return list
}
