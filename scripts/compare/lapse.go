package main

import (
	"context"

	"github.com/lapsehq/lapse/cli/bench"
)

// lapseServer is `lapse serve` in a process of its own, as the peers' servers are.
type lapseServer struct {
	bench.System
	server *server
}

func openLapse(ctx context.Context, binary string) (bench.System, error) {
	s, err := startLapse(ctx, binary)
	if err != nil {
		return nil, err
	}
	system, err := bench.OpenServer(ctx, "http://"+s.addr, "")
	if err != nil {
		s.stop()
		return nil, err
	}
	return &lapseServer{system, s}, nil
}

// Close also stops the server. It may be called more than once.
func (l *lapseServer) Close() error {
	if l.server == nil {
		return nil
	}
	err := l.System.Close()
	l.server.stop()
	l.server = nil
	return err
}
