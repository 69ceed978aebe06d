package respapi

import (
	"strings"

	"github.com/lapsehq/lapse/respapi/internal/resp"
)

// A message is on its way to the subscribers of a channel.
type message struct {
	channel, text string
	ofKey         bool      // only subscribers that may hear of the topic get it
	topic         string    // "": none is known
	heard         *hearings // nil: no one asks who gets it
	key           int       // which one of the publication it is about
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

// publishEvents sends events about keys of one topic. With heard, it sends only those for which
// there is a receiver, and none if no receiver has room, and notes who is sent them.
func (h *hub) publishEvents(class classes, topic, event string, keys []string, heard *hearings) {
	if classes(h.wants.Load())&class == 0 {
		return
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
	if heard != nil && !heard.begin(topic, listeners, h.ofKeysLocked(ofKeys, keys)) {
		return
	}
	m := &message{ofKey: true, topic: topic, heard: heard}
	for i, key := range keys {
		if m.key = i; !heard.wants(topic, ofKeys[i], h.channels[keyspacePrefix+key]) {
			continue
		}
		if h.flags&toKeyspace != 0 && h.keyspaces > 0 {
			m.channel, m.text = keyspacePrefix+key, event
			h.sendBothLocked(ofKeys[i], m)
		}
		m.channel, m.text = keyeventPrefix+event, key
		for _, e := range listeners {
			h.sendLocked(e, m)
		}
	}
	h.flushLocked()
	heard.end()
}

// ofKeysLocked returns the entries that hear of keys on their own channels: of each key those of
// its patterns, and the one of its channel.
func (h *hub) ofKeysLocked(patterns [][]*entry, keys []string) (all []*entry) {
	if h.flags&toKeyspace == 0 || h.keyspaces == 0 {
		return nil
	}
	for i, key := range keys {
		all = append(all, patterns[i]...)
		if e := h.channels[keyspacePrefix+key]; e != nil {
			all = append(all, e)
		}
	}
	return all
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
		if u.gone || m.ofKey && !u.hears(m.topic) || !m.ofKey && !u.may(listening) {
			continue
		}
		n++
		if m.heard != nil && e.want.receives != 0 {
			m.heard.add(u, m.key)
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

// pushLocked sends the batch of a subscriber.
func (h *hub) pushLocked(u *subscriber) {
	if len(u.batch) > 0 && !u.gone {
		if end, there := u.out.push(u.batch); there {
			u.end = end
		} else {
			h.setLocked(u, func() { u.gone = true })
		}
	}
	if u.batch = u.batch[:0]; cap(u.batch) > 2*batchBytes {
		u.batch = nil
	}
}

// flushLocked sends all batches.
func (h *hub) flushLocked() {
	for i, u := range h.dirty {
		h.pushLocked(u)
		h.dirty[i] = nil
	}
	h.dirty = h.dirty[:0]
	for i := range h.encoding {
		if cap(h.encoding[i].Buf) > batchBytes {
			h.encoding[i].Buf = nil
		}
	}
}
