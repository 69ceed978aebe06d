package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/cli/internal/procgroup"
	"github.com/lapsehq/lapse/client"
)

// A receiver runs a shell command for each task of a topic, several at once. A task's lease is
// extended while its command runs. If the lease was lost all the same, the command is killed with
// all processes that it has started, since another receiver may have the task.
type receiver struct {
	*session
	topic   string
	command string
	follow  bool
	wait    time.Duration
	lease   time.Duration
	slots   chan struct{} // one for each command that runs

	mu     sync.Mutex // guards failed and standard error
	failed int
}

var (
	errLeaseLost = errors.New("the lease was lost")
	errCommand   = errors.New("commands failed, and their tasks were released")
)

// orphanGrace is how long to wait for the output of a command that has ended, if a process that it
// left behind holds the output open.
const orphanGrace = 5 * time.Second

func newReceiver(s *session, c *reserve) *receiver {
	return &receiver{session: s, topic: c.Topic, command: c.Exec, follow: c.Follow,
		wait: c.Wait.Duration, lease: c.Lease.Duration, slots: make(chan struct{}, c.Max)}
}

// answerTime is how old a call that reserves may be for its answer to be on the way. An
// interruption waits for that: otherwise no receiver would have its tasks until their leases end.
const answerTime = 500 * time.Millisecond

// run receives until interrupted, or once. After an interruption it reserves no more, gives back
// what has not begun, waits for the commands that run, and settles their tasks.
func (r *receiver) run(ctx context.Context) error {
	var running sync.WaitGroup
	err := r.receive(ctx, &running)
	if n := len(r.slots); ctx.Err() != nil && n > 0 {
		r.report("interrupted: waiting for %s; a second time leaves them alone", counted(n, "command that runs", "commands that run"))
	}
	running.Wait()
	if err != nil && ctx.Err() == nil {
		return err
	}
	if r.failed > 0 && !r.follow {
		return fmt.Errorf("%d %w", r.failed, errCommand)
	}
	return nil
}

func (r *receiver) receive(ctx context.Context, running *sync.WaitGroup) error {
	for {
		n, err := r.take(ctx)
		if err != nil {
			return err
		}
		asked := time.Now()
		list, err := r.reserve(ctx, n)
		for range n - len(list) {
			<-r.slots
		}
		for i := range list {
			running.Go(func() {
				defer func() { <-r.slots }()
				r.handle(context.WithoutCancel(ctx), &list[i])
			})
		}
		switch {
		case !r.follow || ctx.Err() != nil:
			return err
		case exitOf(err) == exitUnavailable:
			r.report("%s", explain(err)) // and again
			err = pause(ctx, time.Second)
		case err == nil && len(list) == 0:
			err = waitAfterEmpty(ctx, asked, r.wait)
		}
		if err != nil {
			return err
		}
	}
}

// take waits for a slot, and takes all that are free.
func (r *receiver) take(ctx context.Context) (n int, err error) {
	select {
	case r.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for n = 1; n < min(cap(r.slots), largestPage); n++ {
		select {
		case r.slots <- struct{}{}:
		default:
			return n, nil
		}
	}
	return n, nil
}

// reserve takes tasks. What comes after an interruption is given back.
func (r *receiver) reserve(ctx context.Context, n int) ([]client.Delivery, error) {
	polling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	asked := time.Now()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(answerTime-time.Since(asked), giveUp) })()
	list, err := r.Reserve(polling, r.topic, client.Reservation{Max: n, Wait: r.wait, Lease: r.lease})
	if ctx.Err() == nil || len(list) == 0 {
		return list, err
	}
	receipts := make([]string, len(list))
	for i := range list {
		receipts[i] = list[i].Receipt
	}
	done, err := r.Return(context.WithoutCancel(ctx), receipts...)
	return nil, errors.Join(err, settled(done))
}

// handle runs the command for one task, and settles it.
func (r *receiver) handle(ctx context.Context, d *client.Delivery) {
	err := r.execute(ctx, d)
	var done *client.Settlement
	switch {
	case errors.Is(err, errLeaseLost):
		r.fail(d, err)
		return
	case err == nil:
		done, err = r.Ack(ctx, d.Receipt)
	default:
		r.fail(d, err)
		done, err = r.Release(ctx, nil, "the command failed: "+err.Error(), d.Receipt)
	}
	if err = errors.Join(err, settled(done)); err != nil {
		r.fail(d, err)
	}
}

func (r *receiver) fail(d *client.Delivery, err error) {
	r.mu.Lock()
	r.failed++
	r.mu.Unlock()
	r.report("%s, attempt %d: %s", d.ID, d.Attempt, explain(err))
}

func (r *receiver) report(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.std.err, "lapse: %s\n", plainLines(fmt.Sprintf(format, args...)))
}

// execute runs the command, and keeps the lease as long as it runs.
func (r *receiver) execute(ctx context.Context, d *client.Delivery) error {
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	command := exec.CommandContext(ctx, "sh", "-c", r.command)
	command.Stdin = bytes.NewReader(append(d.Payload, d.Binary...)) // only one of them is set
	command.Stdout, command.Stderr = r.std.out, r.std.err
	command.Env = append(os.Environ(), describe(d)...)
	command.WaitDelay = orphanGrace
	procgroup.Own(command)
	if err := command.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() { r.keep(ctx, d, ended, kill) })
	err := command.Wait()
	close(ended)
	kill(nil) // this ends an extension that is under way, too
	keeper.Wait()
	switch {
	case errors.Is(context.Cause(ctx), errLeaseLost):
		return errLeaseLost
	case errors.Is(err, exec.ErrWaitDelay): // exit code 0; processes left behind do not count
		return nil
	}
	return err
}

// keep extends a lease three times in its length.
func (r *receiver) keep(ctx context.Context, d *client.Delivery, ended <-chan struct{}, kill context.CancelCauseFunc) {
	ticker := time.NewTicker(r.lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		// An error may pass until the next time. A stale receipt stays stale.
		if done, err := r.Extend(ctx, r.lease, d.Receipt); err == nil && errors.Is(settled(done), client.ErrStale) {
			kill(errLeaseLost)
			return
		}
	}
}

// describe returns the environment variables of a command about its task.
func describe(d *client.Delivery) []string {
	headers, _ := json.Marshal(d.Headers) // strings only: it cannot fail
	return []string{
		"LAPSE_TASK_ID=" + d.ID,
		"LAPSE_TASK_TOPIC=" + d.Topic,
		"LAPSE_TASK_ATTEMPT=" + fmt.Sprint(d.Attempt),
		"LAPSE_TASK_DUE_AT=" + d.Due.Format(time.RFC3339Nano),
		"LAPSE_TASK_GROUP=" + d.Group,
		"LAPSE_TASK_HEADERS=" + string(headers),
	}
}
