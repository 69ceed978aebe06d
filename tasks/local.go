package tasks

import (
	"context"
)

// What one node answers for itself, without a call to others.

// Done is closed when the scheduler has ended: after Close, or because the
// ledger has passed to another owner.
func (s *Scheduler) Done() <-chan struct{} {
	return s.engine.Life.Done
}

// Err tells why the scheduler ended by itself; nil while it runs and after an
// ordinary Close.
func (s *Scheduler) Err() error {
	return s.engine.Err()
}

// Waves counts the tasks of this node that are due in a span, or were, by topic and fate. Those
// that have ended were counted when they did, by the minute of their deadline, and are remembered
// for a day: with the ledger, over restarts of the node. While the ledger cannot be read, Since is
// when this process began, and Complete is false. Like List it visits every task in memory.
//
// Errors: ErrInvalid, ErrNotGranted, ErrClosed; ErrOverloaded if others are being counted and too
// many wait; or why ctx has ended.
func (s Admin) Waves(ctx context.Context, q WaveQuery) (Wave, error) {
	q, err := q.Check()
	if err != nil {
		return Wave{}, err
	}
	return s.cluster.NodeWaves(ctx, q)
}

// Forecast counts the tasks of this node by the time of their next attempt, and judges whether they
// will be delivered in time at the rate that receivers have shown here. Like List it visits every
// task in memory once, a few thousand under one lock. A caller whose grant has some topics only is
// told of a judgement if it asks for one topic.
//
// Errors: ErrInvalid, ErrNotGranted, ErrClosed, or why ctx has ended.
func (s Admin) Forecast(ctx context.Context, o Outlook) (Forecast, error) {
	return s.cluster.NodeForecast(ctx, o)
}

// Reconsider checks again what this process cannot deliver (Topic.Undeliverable), and
// delivers what it can by now. It is to be called when a way of delivery has got what it
// lacked, such as a secret. It includes what ReceiverCame does for all topics.
func (s Admin) Reconsider() {
	s.engine.Reconsider()
}

// ReceiverCame has the tasks of topics tried at once that wait at this node because their deliverer
// has no receiver (ErrNoReceiver): there may be one now. Without a topic it is about all. A
// deliverer that is looking for a receiver at this moment, and finds none, is called again.
// ReceiverCame waits for nothing, and costs little where no task waits.
func (s Admin) ReceiverCame(topics ...string) {
	s.engine.ReceiverCame(topics...)
}

// SetTopic replaces a topic's settings; zero fields take their defaults. They hold for
// every delivery that begins from now on, also of tasks that wait already, and on the other
// nodes of the same ledger. A node that does not answer within half a second has them as soon
// as it reads the ledger again. ifRevision is the revision that the caller has seen, or -1 for
// any.
//
// Errors: ErrInvalid, ErrRevision, ErrOverloaded, ErrUnknown, ErrClosed.
func (s *Scheduler) SetTopic(ctx context.Context, name string, t TopicSettings, ifRevision int64) (TopicInfo, error) {
	return s.engine.SetTopic(ctx, name, t, ifRevision)
}

// ChangeTopic changes some of a topic's settings: change is given those that hold, with their
// defaults filled in, but for a Kind and a Concurrency that were not set. It may be called
// again, with others, if another caller changes them at the same time. What it returns, if
// it fails, is returned. ifRevision is the revision that the caller has seen, or -1 for any.
// A way of delivery that this process does not have may stay, and cannot be chosen.
//
// Errors: as of SetTopic; ErrUnavailable if this version cannot read the topic's settings.
func (s Admin) ChangeTopic(ctx context.Context, name string, ifRevision int64, change func(*TopicSettings) error) (TopicInfo, error) {
	return s.engine.ChangeTopic(ctx, name, ifRevision, change)
}

// PauseTopic stops the delivery of a topic's tasks, or resumes it. They are
// accepted meanwhile, and wait. Errors: as of SetTopic; ErrUnavailable if this version
// cannot read the topic's settings, and so cannot change one of them.
func (s Admin) PauseTopic(ctx context.Context, name string, paused bool) error {
	_, err := s.engine.ChangeTopic(ctx, name, -1, func(t *TopicSettings) error {
		t.Paused = paused
		return nil
	})
	return err
}

// Subscribe makes a subscription, which the caller closes. While there is none, events
// cost nothing. Errors: ErrInvalid, which names topic, kind or buffer; ErrClosed.
func (s *Scheduler) Subscribe(f EventFilter) (*Subscription, error) {
	return s.engine.Feed.Subscribe(f, false)
}

// Topic returns a topic that this node has met. Error: ErrNoTopic, also of a topic that was
// deleted and has no task here.
func (s *Scheduler) Topic(name string) (TopicInfo, error) {
	return s.engine.Topic(name)
}

// Topics returns all topics that this node has met, by name, but for those of which Topic is
// ErrNoTopic. There may be MaxTopics of them: ListTopics returns them page by page.
func (s Admin) Topics() []TopicInfo {
	return s.engine.Topics()
}

// Handle delivers the tasks of a topic to f, up to its Concurrency at once. A
// panic of f is a failed attempt, with its stack in the log. Errors: ErrInvalid,
// ErrHandled (also when the topic's settings choose a way of delivery), ErrOverloaded,
// ErrClosed.
func (s *Scheduler) Handle(topic string, f HandlerFunc) error {
	return s.engine.Deliver(topic, f)
}

// Deliver delivers the tasks of a topic by d. Errors: as of Handle.
func (s *Scheduler) Deliver(topic string, d Deliverer) error {
	return s.engine.Deliver(topic, d)
}
