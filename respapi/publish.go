package respapi

import (
	"context"
	"strings"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// A message is on its way to the subscribers of a channel.
type message struct {
	channel, text string
	ofKey         bool   // only subscribers that may hear of the topic get it
	topic         string // "": none is known
	dry           bool   // it is only counted who would get it
}

// publish sends a message to the subscribers of a channel, and returns how many there are. It
// matches patterns without the mutex, so that this makes no other message wait.
func (h *hub) publish(channel, text string) (n int) {
	h.mu.Lock()
	patterns := h.orderLocked()
	h.mu.Unlock()
	patterns = matched(patterns, channel)
	h.mu.Lock()
	defer h.mu.Unlock()
	n = h.sendBothLocked(patterns, &message{channel: channel, text: text, ofKey: isOfKeys(channel)})
	h.flushLocked()
	return n
}

// matched returns those of the patterns that a channel matches.
func matched(patterns []*entry, channel string) (found []*entry) {
	for _, e := range patterns {
		if e.pattern.Match(channel) {
			found = append(found, e)
		}
	}
	return found
}

// isOfKeys reports whether a channel, or a pattern, is one of those on which the server tells of
// keys.
func isOfKeys[T ~string | ~[]byte](channel T) bool {
	return strings.HasPrefix(string(channel), "__key")
}

// publishEvents sends events about keys of one topic. heard says of each whether a subscriber got
// it; nil: none did.
func (h *hub) publishEvents(class classes, topic, event string, keys []string) (heard []bool) {
	if classes(h.wants.Load())&class == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	listeners, spaces := h.audienceLocked(class, event)
	ofKeys := make([][]*entry, len(keys))
	if len(spaces) > 0 {
		h.mu.Unlock() // as in publish
		for i, key := range keys {
			ofKeys[i] = matched(spaces, keyspacePrefix+key)
		}
		h.mu.Lock()
	}
	heard = make([]bool, len(keys))
	for dry := false; ; dry = true {
		some := false
		m := &message{ofKey: true, topic: topic, dry: dry}
		for i, key := range keys {
			n := 0
			if h.flags&toKeyspace != 0 && h.keyspaces > 0 {
				m.channel, m.text = keyspacePrefix+key, event
				n = h.sendBothLocked(ofKeys[i], m)
			}
			m.channel, m.text = keyeventPrefix+event, key
			for _, e := range listeners {
				n += h.sendLocked(e, m)
			}
			heard[i] = n > 0
			some = some || n > 0
		}
		if h.flushLocked() || dry { // else it is counted again without those that are gone
			if !some {
				return nil
			}
			return heard
		}
	}
}

// audienceLocked returns the entries that hear an event: on its own channel, and the patterns that
// may hear channels of keys.
func (h *hub) audienceLocked(class classes, event string) (listeners, spaces []*entry) {
	if h.flags&class == 0 {
		return nil, nil
	}
	if h.flags&toKeyevent != 0 {
		if e := h.channels[keyeventPrefix+event]; e != nil {
			listeners = append(listeners, e)
		}
	}
	for _, e := range h.orderLocked() {
		if h.flags&toKeyevent != 0 && e.want.keyevent&class != 0 && e.pattern.Match(keyeventPrefix+event) {
			listeners = append(listeners, e)
		}
		if h.flags&toKeyspace != 0 && e.want.keyspace {
			spaces = append(spaces, e)
		}
	}
	return listeners, spaces
}

// sendBothLocked sends to the subscribers of a channel, and to those of the patterns.
func (h *hub) sendBothLocked(patterns []*entry, m *message) (n int) {
	if e := h.channels[m.channel]; e != nil {
		n = h.sendLocked(e, m)
	}
	for _, e := range patterns {
		n += h.sendLocked(e, m)
	}
	return n
}

// sendLocked adds a message to the batches of an entry's subscribers, and returns how many there
// are. flushLocked sends the batches.
func (h *hub) sendLocked(e *entry, m *message) (n int) {
	encoded := [2]bool{}
	for _, u := range e.all {
		if u.gone || m.ofKey && !u.hears(m.topic) {
			continue
		}
		n++
		if m.dry {
			continue
		}
		version := 0
		if u.three {
			version = 1
		}
		w := &h.encoding[version]
		if !encoded[version] {
			encoded[version] = true
			w.Buf, w.Three = w.Buf[:0], u.three
			encode(w, e, m)
		}
		if len(u.batch) == 0 {
			h.dirty = append(h.dirty, u)
		}
		if u.batch = append(u.batch, w.Buf...); len(u.batch) >= batchBytes {
			h.pushLocked(u)
		}
	}
	return n
}

// encode writes a message as the subscribers of an entry get it.
func encode(w *resp.Writer, e *entry, m *message) {
	if e.pattern != nil {
		w.Push(4)
		w.Text("pmessage")
		w.Text(e.name)
	} else {
		w.Push(3)
		w.Text("message")
	}
	w.Text(m.channel)
	w.Text(m.text)
}

// pushLocked sends the batch of a subscriber. It reports whether the subscriber is still there.
func (h *hub) pushLocked(u *subscriber) bool {
	if len(u.batch) > 0 && !u.gone {
		u.gone = !u.out.push(u.batch)
	}
	if u.batch = u.batch[:0]; cap(u.batch) > 2*batchBytes {
		u.batch = nil
	}
	return !u.gone
}

// flushLocked sends all batches. It reports whether all their subscribers are still there.
func (h *hub) flushLocked() bool {
	all := true
	for i, u := range h.dirty {
		all = h.pushLocked(u) && all
		h.dirty[i] = nil
	}
	h.dirty = h.dirty[:0]
	for i := range h.encoding {
		if cap(h.encoding[i].Buf) > batchBytes {
			h.encoding[i].Buf = nil
		}
	}
	return all
}

// awaitRoom waits until the subscribers of expired events of a topic have read what they got, but
// not for those that read nothing for a second: these are not waited for again until they read.
func (h *hub) awaitRoom(ctx context.Context, topic string) {
	outputs := h.crowded(topic)
	if outputs == nil {
		return
	}
	timer := time.NewTimer(stalledAfter)
	defer timer.Stop()
	for out, room := range outputs {
		select {
		case <-room:
		case <-ctx.Done():
			return
		case <-timer.C:
			out.stall(room)
			timer.Reset(0) // the others had as long
		}
	}
}

// crowded returns the outputs of expired events that are full, with what full has returned.
func (h *hub) crowded(topic string) (all map[*output]<-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	listeners, spaces := h.audienceLocked(classExpired, expiredEvent)
	for _, entries := range [][]*entry{listeners, spaces} {
		for _, e := range entries {
			for _, u := range e.all {
				if u.gone || !u.hears(topic) || all[u.out] != nil {
					continue
				}
				if room := u.out.full(backlogBytes); room != nil {
					if all == nil {
						all = make(map[*output]<-chan struct{})
					}
					all[u.out] = room
				}
			}
		}
	}
	return all
}
