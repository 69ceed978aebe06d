package rabbitmq

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/adapters/internal/broker"
)

// A channel carries one batch after the other: messages that are returned while a batch is under
// way belong to it.
type channel struct {
	*amqp.Channel
	link    *connection
	closing <-chan *amqp.Error // gets the reason if the other side closed it
	reason  error              // once it was asked for
	returns <-chan amqp.Return // messages that were routed nowhere
}

// acquire returns a channel that no other batch uses.
func (w *Way) acquire(ctx context.Context) (*channel, error) {
	l, err := w.link.Get(ctx)
	if err != nil {
		return nil, err
	}
	if why := l.blocked.Load(); why != nil {
		return nil, fmt.Errorf("%w: %s", ErrBlocked, *why)
	}
	select {
	case l.places <- struct{}{}:
	case <-ctx.Done():
		return nil, broker.GaveUp(ctx)
	}
	select {
	case ch := <-l.idle:
		return ch, nil
	default:
	}
	return w.open(ctx, l)
}

// open opens a channel in a place that is taken. The broker may need longer for it than the caller
// has; then the next batch gets the channel.
func (w *Way) open(ctx context.Context, l *connection) (*channel, error) {
	type result struct {
		ch  *channel
		err error
	}
	opened := make(chan result)
	w.wg.Go(func() {
		ch, err := l.channel()
		select {
		case opened <- result{ch, err}:
		case <-ctx.Done():
			if err == nil {
				l.idle <- ch
			}
			<-l.places
			return
		}
		if err != nil {
			<-l.places
		}
	})
	select {
	case r := <-opened:
		return r.ch, r.err
	case <-ctx.Done():
		return nil, broker.GaveUp(ctx)
	}
}

func (l *connection) channel() (*channel, error) {
	inner, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	ch := &channel{
		Channel: inner,
		link:    l,
		closing: inner.NotifyClose(make(chan *amqp.Error, 1)),
		returns: inner.NotifyReturn(make(chan amqp.Return, batch)),
	}
	if err := inner.Confirm(false); err != nil {
		_ = inner.Close()
		return nil, err
	}
	return ch, nil
}

// release makes a channel free for the next batch, or, if it is unfit, closes it.
func (w *Way) release(ch *channel, fit bool) {
	if fit {
		ch.link.idle <- ch
		<-ch.link.places
		return
	}
	w.wg.Go(func() { // the broker may be slow
		_ = ch.Close()
		<-ch.link.places
	})
}

// failure returns why a message failed: if the channel is closed, the reason of that.
func (ch *channel) failure(ctx context.Context, err error) error {
	if !ch.IsClosed() {
		return err
	}
	if ch.reason == nil {
		ch.reason = amqp.ErrClosed
		select {
		case e := <-ch.closing: // it comes, or the end of ch.closing does
			if e != nil {
				ch.reason = e
			}
		case <-ctx.Done():
		}
	}
	return ch.reason
}

// returned has the messages of the batch that were routed to no queue, by their ids, with the
// broker's text. The broker returns a message before it confirms it, so all are there.
func (ch *channel) returned() map[string]string {
	var all map[string]string
	for {
		select {
		case r, ok := <-ch.returns:
			if !ok {
				return all
			}
			if all == nil {
				all = map[string]string{}
			}
			all[r.MessageId] = r.ReplyText
		default:
			return all
		}
	}
}
