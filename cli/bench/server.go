package bench

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/lapsehq/lapse/httpapi"
)

// ownServer is a server in this process, and the client that calls it over a socket.
type ownServer struct {
	*overHTTP
	server    *http.Server
	scheduler *embedded
}

// HTTP opens a server in this process on a new ledger, and calls it over HTTP.
func (l Ledger) HTTP(ctx context.Context) (System, error) {
	scheduler, err := l.start(ctx)
	if err != nil {
		return nil, err
	}
	s, err := serve(ctx, scheduler)
	if err != nil {
		return nil, errors.Join(err, scheduler.Close())
	}
	return s, nil
}

func serve(ctx context.Context, scheduler *embedded) (*ownServer, error) {
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler.scheduler, Log: quiet})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := api.HTTPServer()
	go func() { _ = server.Serve(listener) }() // ends with Close
	h, err := openHTTP(ctx, "http://"+listener.Addr().String(), "", topic)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return &ownServer{h, server, scheduler}, nil
}

// Close removes everything at once: this server has no other users.
func (s *ownServer) Close() error {
	s.stopReceivers()
	s.client.CloseIdleConnections()
	return errors.Join(s.server.Close(), s.scheduler.Close())
}
