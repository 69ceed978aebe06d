package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/client"
)

// A name that the server does not know is mostly a slip of the hand. Commands that look at tasks of
// a topic or a group, or change them, fail with exitNotFound then, and do not create the topic.

// An unknownTopic has no settings and no task on the server.
type unknownTopic struct {
	name    string
	similar string // what the name may mean
	create  string // what --create does
}

func (e *unknownTopic) Error() string {
	text := fmt.Sprintf("the topic %q is unknown: it has no settings and no tasks%s", e.name, e.similar)
	switch {
	case e.create == "":
		return text
	case e.similar == "":
		text += ";"
	}
	return text + " --create " + e.create
}

func (e *unknownTopic) Unwrap() error { return client.ErrNoTopic }

// checkTopic returns an unknownTopic unless the server has the topic. If the token may not ask, or
// the server does not answer, it returns no error: the command's own call tells.
func (s *session) checkTopic(ctx context.Context, name string) error {
	if !s.lacksTopic(ctx, name) {
		return nil
	}
	return &unknownTopic{name: name, similar: commandline.Suggest(name, s.topicNames(ctx))}
}

// lacksTopic reports whether no node has the topic. The one that is asked answers first: it mostly
// has it, and waits for no other. While a node does not answer, it may be the one that has it.
func (s *session) lacksTopic(ctx context.Context, name string) bool {
	for _, scope := range []client.Scope{client.ScopeNode, client.ScopeFleet} {
		if _, err := s.aside.Topic(ctx, name, scope); !errors.Is(err, client.ErrNoTopic) {
			return false
		}
	}
	p, err := s.aside.FindTopics(ctx, client.TopicQuery{Search: name, Limit: 1})
	return err == nil && len(p.Missing) == 0
}

// checkTopics is checkTopic for a name that may end with an asterisk: one of the topics is enough.
func (s *session) checkTopics(ctx context.Context, name string) error {
	prefix, several := strings.CutSuffix(name, "*")
	if !several {
		return s.checkTopic(ctx, name)
	}
	for q := (client.TopicQuery{Search: prefix}); ; {
		p, err := s.aside.FindTopics(ctx, q)
		if err != nil || len(p.Missing) > 0 {
			return nil
		}
		if slices.ContainsFunc(p.Topics, func(t client.TopicInfo) bool { return strings.HasPrefix(t.Name, prefix) }) {
			return nil
		}
		if q.Cursor = p.NextCursor; q.Cursor == "" {
			return fmt.Errorf("%w: no name of a topic begins with %q", client.ErrNoTopic, prefix)
		}
	}
}

// checkExported is checkTopics for all topics of an export. One without settings may have finished
// tasks, which an export has, too.
func (s *session) checkExported(ctx context.Context, topics []string) error {
	for _, name := range topics {
		err := s.checkTopics(ctx, name)
		if errors.As(err, new(*unknownTopic)) && s.hasTasks(ctx, s.aside.List, client.Query{Topic: name, State: client.Finished}) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkGroup returns an error if no task of the group waits.
func (s *session) checkGroup(ctx context.Context, group string) error {
	if s.hasTasks(ctx, s.aside.List, client.Query{Group: group}) {
		return nil
	}
	return unknownGroup(group)
}

// hasTasks reports whether a list may have tasks.
func (s *session) hasTasks(ctx context.Context, list func(context.Context, client.Query) (*client.Page, error), q client.Query) bool {
	q.Limit, q.Brief = 1, true
	page, err := list(ctx, q)
	return err != nil || len(page.Tasks) > 0 || page.NextCursor != ""
}

// unknownGroup is the error about a group of which no task waits.
func unknownGroup(group string) error {
	return fmt.Errorf("the group %q is %w: no pending or ready task has it", group, client.ErrNotFound)
}

// checkQuery returns an error if the topic or the group of a query that has selected no task is
// unknown.
func (s *session) checkQuery(ctx context.Context, q client.Query) error {
	if q.Topic != "" {
		if err := s.checkTopic(ctx, q.Topic); err != nil {
			return err
		}
	}
	if q.Group == "" || q.Topic != "" && s.hasTasks(ctx, s.aside.ListDead, client.Query{Topic: q.Topic, Group: q.Group}) {
		return nil
	}
	return s.checkGroup(ctx, q.Group)
}

// checkNew returns an error if a topic that does not exist yet looks like a slip of one that does.
// It is for commands that may create the topic.
func (s *session) checkNew(ctx context.Context, name string) error {
	if known := s.like(ctx, name); known != "" {
		return &unknownTopic{name, fmt.Sprintf(", did you mean %q?", known), "makes it a new one"}
	}
	return nil
}

// slip returns the topic that a user may have meant by the name of one that does not exist; "" if
// it exists, or is like no other.
func (s *session) slip(ctx context.Context, name string) string {
	if !s.lacksTopic(ctx, name) {
		return ""
	}
	return s.like(ctx, name)
}

// like returns a topic whose name an unknown one may be a slip of.
func (s *session) like(ctx context.Context, name string) string {
	for _, known := range s.topicNames(ctx) {
		if isSlip(name, known) {
			return known
		}
	}
	return ""
}

// isSlip reports whether two names differ by two letters at most: of short names by one, of very
// short ones not at all. Names that differ in their digits only, such as shop.1 and shop.2, are
// meant.
func isSlip(name, known string) bool {
	most := 2
	switch n := min(len(name), len(known)); {
	case n < 4:
		return false
	case n < 6:
		most = 1
	}
	return commandline.Distance(name, known) <= most && withoutDigits(name) != withoutDigits(known)
}

func withoutDigits(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, name)
}

// mostNames bounds the topics that are compared with an unknown name.
const mostNames = 10_000

// topicNames returns the names of the topics, as far as they can be read: they only help.
func (s *session) topicNames(ctx context.Context) (names []string) {
	for q := (client.TopicQuery{}); len(names) < mostNames; {
		p, err := s.aside.FindTopics(ctx, q)
		if err != nil {
			return names
		}
		for i := range p.Topics {
			names = append(names, p.Topics[i].Name)
		}
		if q.Cursor = p.NextCursor; q.Cursor == "" {
			return names
		}
	}
	return names
}
