package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/client"
)

// topicNames are the arguments of commands about several topics.
type topicNames struct {
	Topics []string `arg:"" name:"topic" help:"Topics."`
}

type topicsPause struct {
	remote
	Create bool `env:"-" help:"Also topics that have no settings and no tasks yet."`
	topicNames
}

func (c *topicsPause) call(ctx context.Context, s *session) error {
	return c.each(s, "is paused", func(topic string) error {
		if !c.Create {
			err := s.checkTopic(ctx, topic)
			if unknown := (*unknownTopic)(nil); errors.As(err, &unknown) {
				unknown.create = "pauses it before its first task"
			}
			if err != nil {
				return err
			}
		}
		return s.PauseTopic(ctx, topic)
	})
}

type topicsResume struct {
	remote
	topicNames
}

func (c *topicsResume) call(ctx context.Context, s *session) error {
	return c.each(s, "is delivered again", func(topic string) error {
		if err := s.checkTopic(ctx, topic); err != nil {
			return err
		}
		return s.ResumeTopic(ctx, topic)
	})
}

type topicsDelete struct {
	remote
	Force bool `env:"-" help:"Make their pending and ready tasks dead first."`
	asking
	topicNames
}

func (c *topicsDelete) call(ctx context.Context, s *session) error {
	if c.Force {
		if err := c.sure(ctx, s, &c.asking, "made dead, and the settings forgotten"); err != nil {
			return err
		}
	}
	return c.each(s, "has its defaults again", func(topic string) error {
		if err := s.checkTopic(ctx, topic); err != nil {
			return err
		}
		if c.Force {
			return s.KillTopic(ctx, topic)
		}
		err := s.DeleteTopic(ctx, topic)
		if errors.Is(err, client.ErrInUse) {
			return fmt.Errorf("%w; --force makes those of %s dead that wait, lapse topics purge cancels them", err, topic)
		}
		return err
	})
}

// sure asks before something is done with all pending and ready tasks of the topics, and returns an
// error if the user does not agree. done says what will become of the tasks.
func (n *topicNames) sure(ctx context.Context, s *session, a *asking, done string) (err error) {
	if !a.asks(s) {
		return nil
	}
	if n.Topics, err = expand(n.Topics); err != nil || len(n.Topics) == 0 {
		return err
	}
	waiting, least := int64(0), ""
	for _, topic := range n.Topics {
		list, reach, err := topicsOf(ctx, s, topic)
		if err != nil {
			return err
		}
		for i := range list {
			waiting += list[i].Counts.Pending + list[i].Counts.Ready
		}
		if len(reach.Missing) > 0 {
			least = "at least "
		}
	}
	return a.ask(s, fmt.Sprintf("%s%s of %s will be %s", least, counted(waiting, "task", "tasks"), plain(strings.Join(n.Topics, " ")), done))
}

// topicsOf returns the topics for which a name stands, which may end with an asterisk.
func topicsOf(ctx context.Context, s *session, name string) ([]client.TopicInfo, client.Reach, error) {
	prefix, several := strings.CutSuffix(name, "*")
	if several {
		list, reach, err := allTopics(ctx, s, client.TopicQuery{Search: prefix})
		return slices.DeleteFunc(list, func(t client.TopicInfo) bool { return !strings.HasPrefix(t.Name, prefix) }), reach, err
	}
	t, err := s.Topic(ctx, name)
	switch {
	case errors.Is(err, client.ErrNoTopic):
		return nil, client.Reach{}, nil
	case err != nil:
		return nil, client.Reach{}, err
	}
	return []client.TopicInfo{*t}, t.Reach, nil
}

func (n *topicNames) each(s *session, done string, do func(string) error) error {
	return each(n.Topics, func(topic string) error {
		if err := do(topic); err != nil {
			return err
		}
		return s.print(func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", topic, done) })
	})
}

type topicsPurge struct {
	remote
	asking
	topicNames
}

func (c *topicsPurge) call(ctx context.Context, s *session) error {
	if err := c.sure(ctx, s, &c.asking, "cancelled"); err != nil {
		return err
	}
	return each(c.Topics, func(topic string) error {
		p, err := s.Purge(ctx, topic)
		if err == nil && p.Cancelled+p.Delivering == 0 {
			err = s.checkTopics(ctx, topic)
		}
		if err != nil {
			return err
		}
		return s.print(func(w io.Writer) {
			fmt.Fprintf(w, "%s is purged: %s cancelled, %s\n", topic,
				counted(p.Cancelled, "task is", "tasks are"), counted(p.Delivering, "is being delivered and stays", "are being delivered and stay"))
		})
	})
}
