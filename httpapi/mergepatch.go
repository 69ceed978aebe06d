package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// mediaMerge is the media type of a JSON merge patch, RFC 7396.
const mediaMerge = "application/merge-patch+json"

// merge reads a JSON merge patch and applies it to an object. A field that is null is removed, an
// object is merged, and any other value replaces the old one. Values are texts of JSON, or objects
// that were merged.
func (s *scanner) merge(object map[string]any) {
	within := s.within
	for key := range s.object("") {
		name := string(key)
		if s.peek() == '{' {
			inner := membersOf(object[name])
			s.within = within + name + "."
			s.merge(inner)
			s.within = within
			object[name] = inner
			continue
		}
		value := s.raw()
		if bytes.Equal(value, []byte("null")) {
			delete(object, name)
		} else {
			object[name] = json.RawMessage(value)
		}
	}
}

// membersOf returns the fields of a value of merge, none if it is no object.
func membersOf(value any) map[string]any {
	if object, ok := value.(map[string]any); ok {
		return object
	}
	text, _ := value.(json.RawMessage)
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(text, &fields)
	object := make(map[string]any, len(fields))
	for name, field := range fields {
		object[name] = field
	}
	return object
}

// settable are the fields of settings in a request.
var settable = func() map[string]bool {
	names := map[string]bool{}
	t := typeOf[NewTopic]()
	for f := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(f).Tag.Get("json"), ",")
		names[name] = true
	}
	return names
}()

// objectOf returns settings in the form of a request. The way of delivery is left out where the
// settings leave it to the process.
func objectOf(set *tasks.TopicSettings) (map[string]any, error) {
	text, err := json.Marshal(wireTopic(&task.Topic{Settings: *set}))
	if err != nil {
		return nil, err
	}
	object := membersOf(json.RawMessage(text))
	for name := range object {
		if !settable[name] || name == "delivery" && set.Kind == "" || name == "concurrency" && set.Concurrency == 0 {
			delete(object, name)
		}
	}
	return object, nil
}

// patched returns the change of settings that a merge patch describes.
func patched(patch []byte) func(*tasks.TopicSettings) error {
	return changedObject(func(object map[string]any) error {
		s := scan(patch)
		s.merge(object)
		return s.done()
	})
}

// changedObject returns the change of settings that a change of their form in a request makes.
func changedObject(change func(map[string]any) error) func(*tasks.TopicSettings) error {
	return func(set *tasks.TopicSettings) error {
		object, err := objectOf(set)
		if err == nil {
			err = change(object)
		}
		if err != nil {
			return err
		}
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		var changed tasks.TopicSettings
		s := scan(text)
		s.settings(&changed)
		if err := s.done(); err != nil {
			return err
		}
		*set = changed
		return nil
	}
}

// mergeBody reads a body that must be a merge patch.
func mergeBody(c *gin.Context) ([]byte, error) {
	if _, err := mediaType(c, mediaMerge, mediaJSON); err != nil {
		return nil, err
	}
	return readBody(c)
}

// patchTopic answers PATCH /v1/topics/{topic}.
func (s *Server) patchTopic(ctx context.Context, in *patchTopicInput) (*topicReply, error) {
	patch, err := mergeBody(in.gin)
	if err != nil {
		return nil, err
	}
	revision, err := s.ifRevision(in.Topic, in.IfMatch, in.IfNoneMatch)
	if err != nil {
		return nil, err
	}
	t, err := s.changeSettings(ctx, in.gin, tasks.AuditEntry{Verb: "change-topic", Topic: in.Topic}, revision, patched(patch))
	if err != nil {
		return nil, err
	}
	return replyTopic(&t), nil
}
