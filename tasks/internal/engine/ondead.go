package engine

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A task that dies in a topic with OnDead has a follow-up: a new task of another topic. It is
// created in the shard of the dead task, by the very batch that buries that one. So there is
// exactly one for each burial that the ledger has:
//
//	the batch is written, its answer is lost     it is repeated, or the next process reads it
//	the process ends before it is written        the task is delivered again, and dies again
//	the ledger loses it, and the process lives   memory has both, and writes both again
//	the ledger loses it, and the process ends    as if it had not been written
//	the ledger takes no new tasks                the follow-up is written all the same
//
// A task that is requeued and dies once more has another follow-up.

// Headers of a follow-up, beside those of the dead task.
const (
	deadTopic    = task.DeadHeader + "topic"    // of the dead task, as the next three
	deadID       = task.DeadHeader + "id"       //
	deadReason   = task.DeadHeader + "reason"   // exhausted or buried
	deadAttempts = task.DeadHeader + "attempts" //
	deadError    = task.DeadHeader + "error"    // the last one; left out if there is none
	deadAt       = task.DeadHeader + "at"       // when it died, RFC 3339
	deadVia      = task.DeadHeader + "via"      // topics of the chain, in order, with commas
)

const (
	maxDeadError   = 512              // bytes of deadError
	followUpsTold  = 10 * time.Second // between two lines about follow-ups that are not made
	followUpIDs    = 1000             // ids that are tried until one belongs to the shard
	deadTimeLayout = "2006-01-02T15:04:05.000Z07:00"
)

// submitBuryLocked sends a burial, and with it the creation of the follow-up. It reports false if
// there is to be none.
func (s *Engine) submitBuryLocked(w Write, sl *store.Slot) bool {
	if w.followed || sl.Shard == SpoolShard {
		return false
	}
	w.followed = true // also if the ledger has to be sent the burial again
	t := s.TopicTable.ByNumber[sl.Topic]
	n, ok := s.followUpLocked(t, sl)
	if !ok {
		return false
	}
	next := s.Store.Slot(n)
	next.Flags |= store.Writing
	create := Write{slot: n, op: opCreate, after: t}
	// The creation comes first: what is sent again one by one, after a loss, comes in this order.
	changes := []recovery.Change{s.changeOfLocked(&create, next), s.changeOfLocked(&w, sl)}
	s.Committer.SubmitTogether(int(sl.Shard), changes, []Write{create, w})
	return true
}

// followUpLocked enters the follow-up of a task that is being buried. It reports false if there is
// none.
func (s *Engine) followUpLocked(t *Topic, sl *store.Slot) (n uint32, ok bool) {
	set := t.Settings.OnDead
	if set.Topic == "" {
		return 0, false
	}
	f := s.Store.Fields(sl)
	if f.State != record.Exhausted && f.State != record.Buried {
		return 0, false
	}
	headers, _ := record.DecodeHeaders(f.Headers) // Decode has checked them
	via := append(chainOf(headers[deadVia]), t.Name)
	if slices.Contains(via, set.Topic) || len(via) > task.MaxDeaths {
		t.Counts.FollowUpsEnded++
		s.tellFollowUpLocked(sl, t, "a dead task is not followed by another: its chain of deaths ends here", "chain", strings.Join(via, ","))
		return 0, false
	}
	now := s.Now()
	due := now + record.RoundUpMillis(set.Delay)
	next := record.Fields{
		Revision: 1, Due: due, Next: due, Created: s.Writes.newCreated(record.FromMillis(now)), Topic: []byte(set.Topic), Group: f.Group, Payload: f.Payload,
		Headers: record.EncodeHeaders(followUpHeaders(headers, &f, string(s.Store.ID(sl)), strings.Join(via, ","))),
	}
	rec := next.Append(nil)
	id, of, why := s.placeFollowUpLocked(sl, set.Topic, len(rec))
	if why != "" {
		t.Counts.FollowUpsLost++
		s.tellFollowUpLocked(sl, t, "a dead task is not followed by another: there is no room", "reason", why)
		return 0, false
	}
	n, entered := s.Store.Enter([]byte(id), rec)
	entered.Next, entered.Topic, entered.Shard = due, of.Number, sl.Shard
	s.Writes.Arriving++
	s.SetLocked(entered, store.Creating)
	return n, true
}

// placeFollowUpLocked returns an id that belongs to the shard of a dead task, and the topic of its
// follow-up; or why there is no room. The dead task makes room: it leaves memory.
func (s *Engine) placeFollowUpLocked(sl *store.Slot, topic string, size int) (id string, of *Topic, why string) {
	shard := int(sl.Shard)
	switch {
	case s.Store.Len() > s.Config.MaxPending:
		return "", nil, strconv.Itoa(s.Store.Len()) + " tasks are pending"
	case s.Store.Live()+int64(size-len(s.Store.Record(sl))) > s.Config.MaxBytes:
		return "", nil, "the tasks use " + strconv.FormatInt(s.Store.Live(), 10) + " bytes"
	}
	of, err := s.TopicLocked(topic, true)
	if err != nil {
		return "", nil, err.Error()
	}
	for range followUpIDs {
		id = task.NewID()
		if s.Fleet != nil {
			id = s.OwnedLocked(shard).ShardID.NewID()
		}
		key := []byte(id)
		if _, at := s.LookupLocked(key); at != InMemory && !at.Buried() && s.Terms.ShardOf(key) == shard {
			return id, of, ""
		}
	}
	return "", nil, "no id was found for the shard"
}

// chainOf reads the topics of a chain. Callers may have written it.
func chainOf(via string) []string {
	if via == "" {
		return nil
	}
	return strings.SplitN(via, ",", task.MaxDeaths+2)
}

// followUpHeaders returns the headers of the follow-up of a dead task with these headers.
func followUpHeaders(headers map[string]string, f *record.Fields, id, via string) map[string]string {
	all := make(map[string]string, len(headers)+8)
	for name, value := range headers {
		if !strings.HasPrefix(name, task.DeadHeader) {
			all[name] = value
		}
	}
	all[deadTopic], all[deadID], all[deadReason] = string(f.Topic), id, string(reasons[f.State])
	all[deadAttempts], all[deadAt], all[deadVia] = strconv.Itoa(int(f.Attempt)), record.FromMillis(f.Next).Format(deadTimeLayout), via
	if text := asHeader(string(f.LastError)); text != "" {
		all[deadError] = text
	}
	return all
}

// asHeader makes a text fit for a header.
func asHeader(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == unicode.ReplacementChar {
			return ' '
		}
		return c
	}, text)
	return strings.TrimSpace(task.Cut(text, maxDeadError))
}

// tellFollowUpLocked logs why a dead task has no follow-up, one line for many.
func (s *Engine) tellFollowUpLocked(sl *store.Slot, t *Topic, line string, more ...any) {
	if !s.followTold.isDue(s.Elapsed(), followUpsTold) {
		return
	}
	s.Config.Log.Warn(line, append([]any{"node", s.Config.Node, "task", string(s.Store.ID(sl)), "topic", t.Name, "on_dead", t.Settings.OnDead.Topic}, more...)...)
}

// checkOnDeadLocked returns an *InvalidError if what dies in a topic with these settings would come
// back to it, by the settings that this node knows.
func (s *Engine) checkOnDeadLocked(name string, set *task.TopicSettings) error {
	chain := []string{name}
	for next := set.OnDead.Topic; next != "" && len(chain) <= task.MaxDeaths; {
		if next == name {
			return task.Invalid("on_dead.topic", "must not lead back to the topic: "+strings.Join(append(chain, next), " -> "))
		}
		if slices.Contains(chain, next) {
			return nil // not by these settings
		}
		chain = append(chain, next)
		if t, known := s.TopicTable.ByName[next]; known {
			next = t.Settings.OnDead.Topic
		} else {
			next = s.Config.Resolved[next].Set.OnDead.Topic
		}
	}
	return nil
}
