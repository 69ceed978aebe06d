// Package edgetest has connections for tests that come from wherever a test says. It opens none,
// and imports nothing of Lapse.
package edgetest

import "net"

// Offered is a listener of the connections that a test sends to it, until the test closes it.
type Offered chan net.Conn

// Accept returns the next connection. Error: net.ErrClosed.
func (o Offered) Accept() (net.Conn, error) {
	if c, ok := <-o; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

// Close does nothing: a test closes the channel.
func (o Offered) Close() error { return nil }

// Addr returns an address without a meaning.
func (o Offered) Addr() net.Addr { return &net.TCPAddr{} }

// A Comer is a connection from somewhere. Only its address is there, and that it was closed.
type Comer struct {
	net.Conn
	From   net.Addr
	Closed bool
}

// RemoteAddr returns From.
func (c *Comer) RemoteAddr() net.Addr { return c.From }

// Close sets Closed.
func (c *Comer) Close() error { c.Closed = true; return nil }
