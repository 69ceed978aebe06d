//go:build fault

package crash

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// mostUnread is how much memory callers may cost who do not read their answers.
const mostUnread = 500 << 20

// Callers who ask for the largest pages that there are and read none of them cost the server
// a bounded amount of memory, and receivers of another topic hardly any time.
func TestUnreadLists(t *testing.T) {
	t.Run("40Connections", func(t *testing.T) {
		s := newServer(t)
		r := s.start()
		r.ready(t)
		unread(t, r, func(t *testing.T) {
			for range 40 {
				c, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
				fmt.Fprintf(c, "GET /v1/tasks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
			}
		})
	})
	t.Run("250Streams", func(t *testing.T) {
		s := newServer(t)
		cert, key := certificate(t)
		s.more = []string{"--tls-cert", cert, "--tls-key", key}
		r := s.start()
		r.ready(t)
		unread(t, r, func(t *testing.T) {
			c, err := tls.Dial("tcp", strings.TrimPrefix(r.base, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // its certificate was made by this test
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			manyStreams(t, c, 250)
		})
	})
}

// unread measures what begin costs a server with tasks of 65 kB.
func unread(t *testing.T, r *run, begin func(t *testing.T)) {
	payload := strings.Repeat("x", 65_000)
	for batch := range 20 {
		var body bytes.Buffer
		for i := range 100 {
			fmt.Fprintf(&body, "%c{\"id\":\"large-%d-%d\",\"topic\":\"large\",\"delay\":\"1h\",\"payload\":%q}", "[,"[min(i, 1)], batch, i, payload)
		}
		body.WriteByte(']')
		if status, _, err := r.call(http.MethodPost, "/v1/tasks/batch", body.Bytes(), nil); outcome(status, err) != Done {
			t.Fatalf("answered %d, %v", status, err)
		}
	}
	before := newPunctual(t, r).measure()
	base := r.memory(t)
	most := make(chan int64)
	stop := make(chan struct{})
	begin(t)
	go func() {
		peak := int64(0)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			peak = max(peak, r.memory(t))
			select {
			case <-tick.C:
			case <-stop:
				most <- peak
				return
			}
		}
	}()
	during := newPunctual(t, r).measure()
	close(stop)
	more := <-most - base
	t.Logf("memory: %d MB, then at most %d MB more; p99 lateness of another topic: %v, then %v", base>>20, more>>20, before, during)
	if more > mostUnread {
		t.Errorf("%d MB more, want at most %d", more>>20, mostUnread>>20)
	}
}

// manyStreams asks for n lists over one connection, and lets none of them come.
func manyStreams(t *testing.T, c net.Conn, n int) {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(c, c)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go func() { // frames that the server may send without being given room for them
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if s, ok := frame.(*http2.SettingsFrame); ok && !s.IsAck() {
				_ = f.WriteSettingsAck()
			}
		}
	}()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/v1/tasks?limit=1000"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // into memory
		}
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// memory is how much of it the process has, in bytes.
func (r *run) memory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kilobytes int64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		t.Error(err)
	}
	return kilobytes << 10
}

// certificate makes one for this machine, and returns its files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", public), write("key.pem", "PRIVATE KEY", secret)
}
