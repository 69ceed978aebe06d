package edge

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
)

// An echo answers each byte. With the byte 'h' it hangs until it is cut off.
type echo struct {
	net.Conn
	hangs chan struct{} // is closed when it does
	cut   chan struct{}
}

func (e *echo) Serve() {
	defer e.Close()
	for b := make([]byte, 1); ; {
		if _, err := e.Read(b); err != nil {
			return
		}
		if b[0] == 'h' {
			close(e.hangs)
			<-e.cut
			return
		}
		if _, err := e.Write(b); err != nil {
			return
		}
	}
}

func (e *echo) Dismiss() { _ = e.SetReadDeadline(time.Unix(1, 0)) }

func (e *echo) Cut() { close(e.cut) }

// TestDoorEndsInOrder has clients that rest dismissed at once, and one that hangs cut off when the
// patience ends. Nothing is accepted afterwards.
func TestDoorEndsInOrder(t *testing.T) {
	hangs := make(chan struct{})
	door := NewDoor(ConnectionLimits{Most: 10, KeepIdle: true, Log: slog.New(slog.DiscardHandler), Closed: new(Closed)},
		func(nc net.Conn) Guest { return &echo{nc, hangs, make(chan struct{})} })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- door.Serve(l) }()
	call := func(text string) net.Conn {
		t.Helper()
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		if _, err := nc.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		return nc
	}
	resting := call("a")
	if _, err := io.ReadFull(resting, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	call("h")
	<-hangs
	if n, err := door.Guests(), door.Accepting(); n != 2 || err != nil {
		t.Fatalf("the door has %d guests, and accepts with %v", n, err)
	}

	patience, end := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- door.Close(patience) }()
	if rest, err := io.ReadAll(resting); len(rest) > 0 || err != nil {
		t.Errorf("the client that rests reads %q, %v", rest, err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve returns %v", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("Close has returned %v while a guest hangs", err)
	default:
	}
	end()
	if err := <-closed; !errors.Is(err, context.Canceled) {
		t.Errorf("Close returns %v", err)
	}
	if n, err := door.Guests(), door.Accepting(); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("the door has %d guests, and accepts with %v", n, err)
	}
	if err := door.Serve(l); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve after Close: %v", err)
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("a connection is accepted after Close")
	}
}
