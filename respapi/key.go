package respapi

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/tasks"
)

// A key is a key of a command, and the task that it stands for.
type key struct {
	name    []byte
	id      string
	escaped string // of a key whose id does not tell it
	topic   string
}

// streamPrefix begins the keys of streams, see stream.go. The name of a topic follows.
const streamPrefix = "expired:"

// isStream reports whether a name is that of the stream of a topic that has keys.
func (s *Server) isStream(name []byte) bool {
	if len(name) <= len(streamPrefix) || string(name[:len(streamPrefix)]) != streamPrefix {
		return false
	}
	_, ok := s.hasKeys[string(name[len(streamPrefix):])]
	return ok
}

// keyTopic returns the topic of a key, or the answer to a name that cannot be one.
func (s *Server) keyTopic(name []byte) (topic, problem string) {
	topic, ok := s.topicOf(name)
	switch {
	case len(name) > keyid.MaxKey:
		return "", errKeyTooLong
	case s.isStream(name):
		return "", errWrongType
	case !ok:
		return "", "ERR no prefix in resp_topics matches the key"
	}
	return topic, ""
}

// key returns the key in an argument. It answers and reports false if it cannot be one.
func (x *call) key(name []byte) (k key, ok bool) {
	topic, problem := x.c.server.keyTopic(name)
	if problem != "" {
		x.out.Error(problem)
		return k, false
	}
	return keyOf(name, topic), true
}

// twoKeys returns the keys in the first two arguments, as key does.
func (x *call) twoKeys() (from, to key, ok bool) {
	if from, ok = x.key(x.args[1]); ok {
		to, ok = x.key(x.args[2])
	}
	return from, to, ok
}

// keys returns the arguments of a command that are keys, as far as they can be some.
func (x *call) keys() (keys []key) {
	for _, name := range x.verb.keysOf(x.args) {
		if topic, problem := x.c.server.keyTopic(name); problem == "" {
			keys = append(keys, keyOf(name, topic))
		}
	}
	return keys
}

func keyOf(name []byte, topic string) key {
	id, escaped := keyid.Encode(name)
	return key{name: name, id: id, escaped: escaped, topic: topic}
}

// headers returns the headers of the key's task.
func (k *key) headers() map[string]string {
	if k.escaped == "" {
		return nil
	}
	return map[string]string{keyid.Header: k.escaped}
}

// errOtherTopic is returned for a task that has the id of a key, but another topic than the key.
var errOtherTopic = errors.New(errWrongType)

// found returns the task of a key. It exists as a key if isLive is true for it. A task that there
// is not is the zero Task. Errors: errOtherTopic, those of Scheduler.Get but ErrNotFound;
// ErrNotGranted if the caller may not use the topic of the key, whether there is a task or not.
func (x *call) found(ctx context.Context, k *key) (t tasks.Task, err error) {
	if !tasks.GrantOf(ctx).Allows(k.topic) {
		return tasks.Task{}, tasks.ErrNotGranted
	}
	t, err = x.scheduler().Get(ctx, k.id)
	switch {
	case errors.Is(err, tasks.ErrNotFound):
		t, err = tasks.Task{}, nil
	case err != nil:
		return tasks.Task{}, err
	case t.Topic != k.topic:
		return tasks.Task{}, errOtherTopic
	}
	if x.beside != nil {
		err = x.beside.saw(k, &t, false)
	}
	return t, err
}

// isLive reports whether a task is a key that exists: it waits for its deadline, or has none. Later
// it is an expiry that is being delivered. The clock of its owner counts, as it was when the task
// was read: that clock says when the task is due.
func isLive(t *tasks.Task) bool {
	switch t.State {
	case tasks.Held:
		return true
	case tasks.Pending:
		return t.Attempt == 0 && t.Due.After(t.SeenAt)
	}
	return false
}
