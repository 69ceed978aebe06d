package redisledger

import (
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/redis/go-redis/v9"
)

// Connect makes a client for a URL that ParseURL accepts, with the timeouts of the ledger's
// own: a command that Redis does not answer within a second fails, and no command is sent twice.
// It does not connect yet. connections is the highest number of connections for each server.
func Connect(url string, connections int) (redis.UniversalClient, error) {
	a, err := conn.ParseURL(url)
	if err != nil {
		return nil, err
	}
	c, err := conn.Connect(a, nil, connections, conn.IOTimeout)
	if err != nil {
		return nil, err
	}
	return c.UniversalClient, nil
}

// ConnectReader is Connect for a caller that only reads, at a master or a replica. answer bounds
// each command.
func ConnectReader(url string, connections int, answer time.Duration) (redis.UniversalClient, error) {
	a, err := conn.ParseURL(url)
	if err != nil {
		return nil, err
	}
	c, err := conn.ConnectReader(a, connections, answer)
	if err != nil {
		return nil, err
	}
	return c.UniversalClient, nil
}

// ParseURL reports what is wrong with a URL, if anything, without using it. The
// error names the accepted forms, and never repeats a password.
func ParseURL(s string) error {
	_, err := conn.ParseURL(s)
	return err
}

// WithoutSecrets returns a URL that ParseURL accepts without its user and
// password, for logs and people.
func WithoutSecrets(s string) string {
	a, err := conn.ParseURL(s)
	if err != nil {
		return "(not a URL of Redis)"
	}
	return a.String()
}
