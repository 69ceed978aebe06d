package redispipe

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// pipelineBytes is how much one pipeline carries, and one command more: at 10 Mbit/s
// less than a second's worth.
const pipelineBytes = 1 << 20

// ErrUnreachable is the error of a command that Redis has not answered: it may have
// been executed, or never have arrived.
var ErrUnreachable = errors.New("redis has not answered")

// A Command is one of a batch, and after Send its outcome.
type Command struct {
	Args  []any
	Bytes int // about how long it is

	Reply any   // never nil if Err is nil
	Err   error // wraps ErrUnreachable, or is what Redis replied
}

// Send sends commands in their order and returns when each has its outcome, or when ctx
// ends. The client heeds a context's deadline, but not its end: then what is under way
// is left to itself. It ends when Redis answers, with the client's timeout, or when
// the client is closed.
func Send(ctx context.Context, client redis.UniversalClient, commands []Command) {
	sent := make(chan []Command, 1)
	own := slices.Clone(commands) // these are the caller's, who may be gone first
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

// sendAll sends as many pipelines as it takes. Once Redis has not answered one, what
// comes after it is not sent any more: the whole takes no longer than one timeout,
// however many there are.
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

// send sends one pipeline. It returns why Redis cannot be reached, if that is so.
func send(ctx context.Context, client redis.UniversalClient, commands []Command) (unreachable error) {
	cmds := make([]redis.Cmder, len(commands))
	for i := range commands {
		cmds[i] = redis.NewCmd(ctx, commands[i].Args...)
	}
	p := client.Pipeline()
	_ = p.BatchProcess(ctx, cmds...) // only keeps them
	_, failure := p.Exec(ctx)
	for i := range commands {
		c, cmd := &commands[i], cmds[i].(*redis.Cmd)
		c.Reply, c.Err = cmd.Val(), cmd.Err()
		var reply redis.Error
		switch {
		case errors.As(c.Err, &reply):
		case c.Err == nil && c.Reply != nil:
		default:
			// The client may leave a command without an error when its connection
			// broke: only a reply says that it was executed.
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
