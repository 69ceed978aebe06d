package redispipe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// pipelineBytes is how much one pipeline carries, plus at most one command: less than a second's
// worth at 10 Mbit/s.
const pipelineBytes = 1 << 20

// ErrUnreachable is the error of a command that Redis has not answered: it may have been executed,
// or never have arrived.
var ErrUnreachable = errors.New("redis has not answered")

// A Command is one of a batch, and after Send its outcome.
type Command struct {
	Args  []any
	Bytes int // about how long it is

	Reply any   // never nil if Err is nil
	Err   error // wraps ErrUnreachable, or is what Redis replied
}

// Send sends commands in their order and returns when each has its outcome, or when ctx ends. The
// client obeys a context's deadline, but not its end. When ctx ends, the command under way goes on
// without a caller. It ends when Redis answers, with the client's timeout, or when the client is
// closed.
func Send(ctx context.Context, client redis.UniversalClient, commands []Command) {
	sent := make(chan []Command, 1)
	own := slices.Clone(commands) // a copy, since the caller may return first
	go func() {
		sendAll(ctx, client, own)
		sent <- own
	}()
	select {
	case own := <-sent:
		copy(commands, own)
	case <-ctx.Done():
		for i := range commands {
			commands[i].Err = fmt.Errorf("%w: %w", ErrUnreachable, context.Cause(ctx))
		}
	}
}

// sendAll sends as many pipelines as needed. Once Redis has not answered one, it sends no further
// ones: the whole takes no longer than one timeout, however many pipelines there are.
func sendAll(ctx context.Context, client redis.UniversalClient, commands []Command) {
	for len(commands) > 0 {
		n, size := 0, 0
		for n < len(commands) && size < pipelineBytes {
			size += commands[n].Bytes
			n++
		}
		if err := send(ctx, client, commands[:n]); err != nil {
			for i := range commands[n:] {
				commands[n+i].Err = fmt.Errorf("%w: %w", ErrUnreachable, err)
			}
			return
		}
		commands = commands[n:]
	}
}

// send sends one pipeline. It returns the error if Redis cannot be reached.
func send(ctx context.Context, client redis.UniversalClient, commands []Command) (unreachable error) {
	cmds := make([]redis.Cmder, len(commands))
	for i := range commands {
		cmds[i] = redis.NewCmd(ctx, commands[i].Args...)
	}
	p := client.Pipeline()
	_ = p.BatchProcess(ctx, cmds...) // only collects them
	_, failure := p.Exec(ctx)
	for i := range commands {
		c, cmd := &commands[i], cmds[i].(*redis.Cmd)
		c.Reply, c.Err = cmd.Val(), cmd.Err()
		var reply redis.Error
		switch {
		case errors.As(c.Err, &reply):
		case c.Err == nil && c.Reply != nil:
		default:
			// The client may leave a command without an error when its connection broke. Only a
			// reply shows that the command was executed.
			unreachable = c.Err
			if unreachable == nil {
				unreachable = failure
			}
			if unreachable == nil {
				unreachable = errors.New("no reply")
			}
			c.Err = fmt.Errorf("%w: %w", ErrUnreachable, unreachable)
		}
	}
	return unreachable
}
