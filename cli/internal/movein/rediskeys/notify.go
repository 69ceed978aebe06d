package rediskeys

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/cli/internal/movein"
)

const (
	setting = "notify-keyspace-events"
	// needed are the classes of notifications that are followed: of keyspaces, generic commands,
	// strings, and evictions.
	needed = "Kg$e"
)

// ErrNotify is returned if the source does not send the notifications that --watch needs.
var ErrNotify = errors.New("the notifications of Redis are not on")

// lacking returns which of the needed classes a setting does not have.
func lacking(flags string) string {
	if strings.ContainsRune(flags, 'A') { // all classes, but not K and E
		flags += "g$e"
	}
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(flags, r) {
			return -1
		}
		return r
	}, needed)
}

// checkNotifications returns an error that says what to set, unless every server sends what is
// needed. With Configure it sets that.
func (m *importer) checkNotifications(ctx context.Context) error {
	nodes, err := m.source.nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		var flags string
		err := m.source.try(ctx, func() error {
			all, err := node.ConfigGet(ctx, setting).Result()
			flags = all[setting]
			return err
		})
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			m.Tell("the setting %s of %s cannot be read (%v); it must have %s", setting, node.Options().Addr, errors.Unwrap(err), needed)
			continue
		}
		missing := lacking(flags)
		switch {
		case missing == "":
		case !m.Configure:
			return fmt.Errorf("%w at %s: %s is %q and lacks %s. Give --configure, or: redis-cli CONFIG SET %s %s", ErrNotify,
				node.Options().Addr, setting, flags, missing, setting, flags+missing)
		default:
			if err := node.ConfigSet(ctx, setting, flags+missing).Err(); err != nil {
				return fmt.Errorf("%w: setting %s at %s: %w", movein.ErrSource, setting, node.Options().Addr, err)
			}
			m.Tell("%s of %s was %q and is %q now", setting, node.Options().Addr, flags, flags+missing)
		}
	}
	return nil
}

// A subscriber hears the notifications of one server.
type subscriber struct {
	pubsub *redis.PubSub
	done   chan struct{} // closed when its goroutine has ended
}

// waitForEvents is how many notifications of a server may wait.
const waitForEvents = 1 << 14

// subscribe begins to hear the notifications of a server. It returns once Redis has confirmed that.
func (m *importer) subscribe(ctx context.Context, node *redis.Client) (*subscriber, error) {
	prefix := fmt.Sprintf("__keyspace@%d__:", m.source.db)
	s := &subscriber{node.PSubscribe(ctx, prefix+m.Match), make(chan struct{})}
	if _, err := s.pubsub.Receive(ctx); err != nil {
		_ = s.pubsub.Close()
		return nil, fmt.Errorf("%w: subscribing at %s: %w", movein.ErrSource, node.Options().Addr, err)
	}
	heard := s.pubsub.ChannelWithSubscriptions(redis.WithChannelSize(waitForEvents))
	go func() {
		defer close(s.done)
		for event := range heard {
			switch e := event.(type) {
			case *redis.Subscription: // the connection is a new one
				m.hands.lose()
			case *redis.Message:
				if key, ok := strings.CutPrefix(e.Channel, prefix); ok {
					m.heard(key, e.Payload)
				}
			}
		}
	}()
	return s, nil
}

// heard notes what a notification says, unless it says that the key has expired: then Lapse
// delivers its task.
func (m *importer) heard(key, event string) {
	if event != "expired" {
		m.hands.note(key, event == "evicted")
	}
}

func (s *subscriber) close() {
	_ = s.pubsub.Close()
	<-s.done
}
