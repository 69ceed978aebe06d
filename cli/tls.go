package cli

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"
)

// certificates are the certificate of the server and the authorities of its clients. They can be
// read again while it runs: later connections use the new ones.
type certificates struct {
	cert, key, clientCA string // files
	current             atomic.Pointer[tls.Config]
}

// read reads the files. On an error, which lists everything that is wrong, what was
// read before stays in use.
func (c *certificates) read() error {
	var all *multierror.Error
	next := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		all = multierror.Append(all, fmt.Errorf("tls-cert, tls-key: %w", err))
	}
	next.Certificates = []tls.Certificate{pair}
	if c.clientCA != "" {
		next.ClientAuth = tls.RequireAndVerifyClientCert
		if next.ClientCAs, err = readAuthorities(c.clientCA); err != nil {
			all = multierror.Append(all, fmt.Errorf("tls-client-ca: %w", err))
		}
	}
	if all == nil {
		c.current.Store(next)
	}
	return all.ErrorOrNil()
}

func readAuthorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return pool, nil
}

// ends is when the certificate in use expires.
func (c *certificates) ends() time.Time { return c.current.Load().Certificates[0].Leaf.NotAfter }

// serve is server.Serve, over TLS if there are certificates.
func (c *certificates) serve(server *http.Server, listener net.Listener) error {
	if c != nil {
		listener = tlsListener{listener, c}
	}
	return server.Serve(listener)
}

// A tlsListener gives each connection the certificates that are in use when it
// begins. Keys for the tickets of sessions belong to a configuration, so that no session
// outlives the certificates it was begun with. (Those of tls.Config.GetConfigForClient
// would share the keys of the one that asks it.)
type tlsListener struct {
	net.Listener
	with *certificates
}

// Accept waits for a connection.
func (s tlsListener) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tls.Server(conn, s.with.current.Load()), nil
}
