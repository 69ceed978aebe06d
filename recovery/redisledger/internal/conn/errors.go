package conn

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Refused reports whether Redis itself has refused a command for good.
func Refused(err error) bool {
	for _, prefix := range []string{"NOAUTH", "WRONGPASS", "NOPERM"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return saysOneOf(err, "db index is out of range", "invalid db index", "without any password configured") || UnknownCommand(err)
}

// UnknownCommand reports whether an error says that a command does not exist. A server that is
// down, is loading or may not write never answers that.
func UnknownCommand(err error) bool {
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

// HungUp reports whether the other side has closed the connection.
func HungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// TimedOut reports whether the answer was too slow, and not the connection to the server.
func TimedOut(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// WrongType reports whether a key has another type than it should. Some versions of Redis
// put the name of the script before the error of a command in it.
func WrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }
