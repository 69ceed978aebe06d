package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/cli/bench"
)

// beanstalkd is a server of its own, as a bench.System. It counts delays in whole
// seconds from the moment of the put.
//
// Steady rates round them up: nothing is early. A burst at one instant would be
// spread over a second by that, so there (instant) they are rounded down, all jobs
// are ready when the instant comes, and the receivers wait for it: what is measured
// is how fast it hands out and deletes, without the tick that makes jobs ready.
// Both are in its favour. Receivers reserve and delete up to 100 jobs a round trip.
type beanstalkd struct {
	server  *server
	instant bool
	last    atomic.Int64 // the latest deadline, ns

	conns   chan *beanstalk // of the scheduling callers
	all     []*beanstalk
	group   sync.WaitGroup
	closing atomic.Bool
	fault   atomic.Pointer[error]
}

const (
	beanstalkSenders   = 64
	beanstalkReceivers = 4
	beanstalkWindow    = 100
)

func openBeanstalkd(ctx context.Context, instant bool, options ...string) (bench.System, error) {
	s, err := startBeanstalkd(ctx, options...)
	if err != nil {
		return nil, err
	}
	b := &beanstalkd{server: s, instant: instant, conns: make(chan *beanstalk, beanstalkSenders)}
	for range beanstalkSenders {
		c, err := b.dial()
		if err != nil {
			_ = b.Close()
			return nil, err
		}
		b.conns <- c
	}
	return b, nil
}

func (b *beanstalkd) dial() (*beanstalk, error) {
	c, err := dialBeanstalk(b.server.addr)
	if err == nil {
		b.all = append(b.all, c)
	}
	return c, err
}

func (b *beanstalkd) seconds(due time.Time) int {
	d := max(0, time.Until(due))
	if !b.instant {
		d += time.Second - 1
	}
	return int(d / time.Second)
}

func (b *beanstalkd) Schedule(ctx context.Context, t bench.Task) error {
	return b.ScheduleBatch(ctx, []bench.Task{t})
}

func (b *beanstalkd) ScheduleBatch(_ context.Context, ts []bench.Task) error {
	c := <-b.conns
	defer func() { b.conns <- c }()
	for _, t := range ts {
		for last := b.last.Load(); t.Due.UnixNano() > last; last = b.last.Load() {
			b.last.CompareAndSwap(last, t.Due.UnixNano())
		}
		c.sendPut(b.seconds(t.Due), t.Payload)
	}
	if err := c.flush(); err != nil {
		return err
	}
	for range ts {
		if err := c.readInserted(); err != nil {
			return err
		}
	}
	return nil
}

func (b *beanstalkd) Receive(_ context.Context, got func([]byte)) error {
	for range beanstalkReceivers {
		c, err := b.dial()
		if err != nil {
			return err
		}
		b.group.Go(func() {
			for !b.closing.Load() {
				if wait := b.last.Load() - time.Now().UnixNano(); b.instant && wait > 0 {
					<-time.After(min(time.Duration(wait), 100*time.Millisecond))
					continue
				}
				if err := receiveOnce(c, got); err != nil {
					err = fmt.Errorf("a receiver: %w", err)
					b.fault.CompareAndSwap(nil, &err)
					return
				}
			}
		})
	}
	return nil
}

// receiveOnce waits for one job, and takes up to a window of them and deletes them
// in two round trips.
func receiveOnce(c *beanstalk, got func([]byte)) error {
	c.sendReserve(1)
	for range beanstalkWindow - 1 {
		c.sendReserve(0)
	}
	if err := c.flush(); err != nil {
		return err
	}
	reserved := 0
	for range beanstalkWindow {
		id, body, ok, err := c.readReserved()
		if err != nil {
			return err
		}
		if ok {
			got(body)
			c.sendDelete(id)
			reserved++
		}
	}
	if err := c.flush(); err != nil {
		return err
	}
	for range reserved {
		if err := c.readDeleted(); err != nil {
			return err
		}
	}
	return nil
}

func (b *beanstalkd) Standing(context.Context) (bench.Standing, error) {
	if fault := b.fault.Load(); fault != nil {
		return bench.Standing{}, *fault
	}
	c := <-b.conns
	defer func() { b.conns <- c }()
	s, err := c.stats("default")
	left := s["current-jobs-ready"] + s["current-jobs-reserved"] + s["current-jobs-delayed"] + s["current-jobs-buried"]
	return bench.Standing{Left: left}, err
}

func (b *beanstalkd) Close() error {
	if b.closing.Swap(true) {
		return nil
	}
	b.group.Wait()
	for _, c := range b.all {
		_ = c.conn.Close()
	}
	b.server.stop()
	return nil
}
