package main

import (
	"context"

	"github.com/lapsehq/lapse/cli/bench"
)

// lapseServer is `lapse serve` in a process of its own, as the peers' servers are.
type lapseServer struct {
	bench.System
	server *server
	redis  *server // nil: on disk
}

// openLapse starts one on a Redis of its own with these options, or on disk if they are nil.
func openLapse(ctx context.Context, binary string, onRedis []string) (bench.System, error) {
	var redis *server
	address := ""
	if onRedis != nil {
		var err error
		if redis, err = startRedis(ctx, onRedis...); err != nil {
			return nil, err
		}
		address = redis.addr
	}
	s, err := startLapse(ctx, binary, address)
	if err != nil {
		redis.stop()
		return nil, err
	}
	system, err := bench.OpenServer(ctx, "http://"+s.addr, "")
	if err != nil {
		s.stop()
		redis.stop()
		return nil, err
	}
	return &lapseServer{system, s, redis}, nil
}

// Close deletes the server with all its data, which is faster than to cancel task by task. It may
// be called more than once.
func (l *lapseServer) Close() error {
	if l.server == nil {
		return nil
	}
	l.server.stop()
	l.redis.stop()
	l.server = nil
	_ = l.System.Close() // this ends the receivers; the server does not answer any more
	return nil
}
