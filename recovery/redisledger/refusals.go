package redisledger

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrCommands is returned by Adopt when the server lacks a command that the ledger needs: it
// is a proxy, or an operator has renamed the command.
var ErrCommands = errors.New("the server lacks a command that Lapse needs")

// refused reports whether Redis itself has refused a command for good.
func refused(err error) bool {
	for _, prefix := range []string{"NOAUTH", "WRONGPASS", "NOPERM"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return saysOneOf(err, "db index is out of range", "invalid db index", "without any password configured") || unknownCommand(err)
}

// unknownCommand reports whether an error says that a command does not exist. A server that is
// down, is loading or may not write never answers that.
func unknownCommand(err error) bool {
	return saysOneOf(err, "unknown command", "unknown redis command", "unsupported command", "command not supported", "not supported command")
}

// saysOneOf reports whether an error is a reply of Redis that contains one of the texts.
func saysOneOf(err error, texts ...string) bool {
	var answer redis.Error
	if !errors.As(err, &answer) {
		return false
	}
	said := strings.ToLower(answer.Error())
	for _, text := range texts {
		if strings.Contains(said, text) {
			return true
		}
	}
	return false
}

// probeScript does nothing.
var probeScript = newScript("return 1")

// checkCommands tries the commands that proxies lack, so that its error names the missing one.
// It ignores other failures: later calls report them.
func (l *Ledger) checkCommands(ctx context.Context) error {
	for _, need := range []struct {
		command string
		try     func(ctx context.Context) error
	}{
		{"INFO", func(ctx context.Context) error { return l.client.Info(ctx, "server").Err() }},
		{"EVALSHA and EVAL", func(ctx context.Context) error {
			return probeScript.run(ctx, l.client, []string{l.keys.Nodes()}).Err()
		}},
		{"SUBSCRIBE", l.trySubscribe},
	} {
		if err := need.try(ctx); unknownCommand(err) {
			err = fmt.Errorf("%w: %s refuses %s: %w; Lapse needs scripts, INFO and channels, which some proxies lack",
				ErrCommands, l.address, need.command, err)
			l.log.Error("Lapse cannot use this Redis", "refused", need.command, "error", err)
			return err
		}
	}
	return nil
}

func (l *Ledger) trySubscribe(ctx context.Context) error {
	ps := l.client.Subscribe(ctx)
	defer ps.Close()
	if err := ps.Subscribe(ctx, l.keys.BusOf(l.opts.Node)); err != nil {
		return err
	}
	_, err := ps.ReceiveTimeout(ctx, ioTimeout)
	return err
}

const (
	// manyHangUps is how many attempts in a row may end with a closed connection before the
	// cause is examined.
	manyHangUps = 3
	// waitsForServer is the name of readiness' entry for a Redis that closes connections.
	waitsForServer = "Redis"
)

// hungUp reports whether the other side has closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// A hangUps counts attempts to reach Redis that ended with a closed connection. These need not
// be refusals: a server that is shut down closes connections too.
type hangUps struct {
	count  int
	logged bool
}

// note records the outcome of an attempt.
func (h *hangUps) note(ctx context.Context, l *Ledger, err error) {
	if !hungUp(err) {
		h.count = 0
		l.bulk.waits.Clear(waitsForServer)
		return
	}
	if h.count++; h.count < manyHangUps || !l.answersPing(ctx) {
		return
	}
	l.bulk.waits.Set(waitsForServer, fmt.Sprintf("%s answers PING and closes the connection after other commands: is it a proxy without scripts, INFO or channels?", l.address))
	if !h.logged {
		h.logged = true
		l.log.Error("the server answers PING and closes the connection after other commands; Lapse needs scripts, INFO and channels, which some proxies lack",
			"redis", l.address.String(), "attempts", h.count, "error", err)
	}
}

// answersPing sends PING over a connection that was used for nothing else: the client's own
// connections begin with HELLO.
func (l *Ledger) answersPing(ctx context.Context) bool {
	if l.address.mode != standalone {
		return false
	}
	config := l.opts.TLS
	if config == nil {
		var err error
		if config, err = l.address.tls(); err != nil {
			return false
		}
	}
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	var conn net.Conn
	var err error
	if config != nil {
		conn, err = (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", l.address.hosts[0])
	} else {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", l.address.hosts[0])
	}
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(ioTimeout))
	if _, err := io.WriteString(conn, "*1\r\n$4\r\nPING\r\n"); err != nil {
		return false
	}
	line, err := bufio.NewReader(io.LimitReader(conn, 512)).ReadString('\n')
	return err == nil && (strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH"))
}
