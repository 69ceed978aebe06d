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
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// mostUnread bounds the memory for callers that do not read their answers.
const mostUnread = 500 << 20

// Callers that ask for the largest possible pages and read none of them cost the server a bounded
// amount of memory, and receivers of another topic hardly any time.
func TestUnreadLists(t *testing.T) {
	t.Parallel()
	t.Run("40Connections", func(t *testing.T) {
		t.Parallel()
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
		t.Parallel()
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
			manyStreams(t, c, 250)
		})
	})
}

// unread measures the cost of begin for a server with tasks of 65 kB.
func unread(t *testing.T, r *run, begin func(t *testing.T)) {
	scheduleLarge(t, r)
	before := newPunctual(t, r).measure()
	base, err := r.memory()
	if err != nil {
		t.Fatal(err)
	}
	begin(t)
	watch := watchMemory(r)
	during := newPunctual(t, r).measure()
	peak, err := watch()
	if err != nil {
		t.Errorf("the memory of the server: %v", err)
	}
	more := peak - base
	t.Logf("memory: %d MB, then at most %d MB more; p99 lateness of another topic: %v, then %v", base>>20, more>>20, before, during)
	if more > mostUnread {
		t.Errorf("%d MB more, want at most %d; now:\n%s", more>>20, mostUnread>>20, r.heap())
	}
}

// scheduleLarge schedules 2,000 tasks of 65 kB. A slow disk may need several attempts, which their
// ids allow.
func scheduleLarge(t *testing.T, r *run) {
	t.Helper()
	payload, due := strings.Repeat("x", 65_000), rig.Wire(time.Now().Add(time.Hour))
	client := newPunctual(t, r)
	for batch := range 20 {
		const number = 100
		var body bytes.Buffer
		for i := range number {
			fmt.Fprintf(&body, "%c{\"id\":\"large-%d-%d\",\"topic\":\"large\",\"due_at\":%q,\"payload\":%q}", "[,"[min(i, 1)], batch, i, due, payload)
		}
		body.WriteByte(']')
		var answer batchAnswer
		attempt := func() error {
			answer = batchAnswer{}
			if err := client.ask("/v1/tasks/batch", body.Bytes(), &answer); err != nil {
				return err
			}
			return answer.taken(number)
		}
		err := attempt()
		for began := time.Now(); err != nil && time.Since(began) < time.Minute; err = attempt() {
			t.Logf("batch %d: %v", batch, err)
			<-time.After(200 * time.Millisecond)
		}
		if err != nil {
			t.Fatalf("batch %d: %v", batch, err)
		}
	}
}

// watchMemory reads the memory of a process until the function that it returns is called, which
// returns the greatest value.
func watchMemory(r *run) (end func() (int64, error)) {
	stop, ended := make(chan struct{}), make(chan struct{})
	var peak int64
	var failure error
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			now, err := r.memory()
			if err != nil {
				failure = err
				return
			}
			peak = max(peak, now)
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() (int64, error) {
		close(stop)
		<-ended
		return peak, failure
	}
}

// heap returns how the server divides its memory, as far as it answers.
func (r *run) heap() string {
	status, text, err := r.exchange(http.MethodGet, "/metrics", nil)
	if err != nil || status != http.StatusOK {
		return fmt.Sprintf("/metrics was answered %d, %v", status, err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "go_memstats_") || strings.HasPrefix(line, "lapse_http_refused_total") || strings.HasPrefix(line, "process_resident") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// manyStreams asks for n lists over one connection, and reads none of them.
func manyStreams(t *testing.T, c net.Conn, n int) {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(c, c)
	var writing sync.Mutex // one write at a time; a read may overlap
	write := func(frame func() error) error {
		writing.Lock()
		defer writing.Unlock()
		return frame()
	}
	if err := write(func() error { return f.WriteSettings() }); err != nil {
		t.Fatal(err)
	}
	frames := map[http2.FrameType]int{} // that came
	var failure error
	ended := make(chan struct{})
	go func() { // the frames that the server may send without a window update
		defer close(ended)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				failure = err
				return
			}
			frames[frame.Header().Type]++
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = write(f.WriteSettingsAck)
				}
			case *http2.PingFrame:
				if !frame.IsAck() {
					_ = write(func() error { return f.WritePing(true, frame.Data) })
				}
			}
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-ended
		t.Logf("frames of the server: %v; then %v", frames, failure)
		if frames[http2.FrameHeaders] == 0 || frames[http2.FrameData] == 0 {
			t.Error("the server has answered no list")
		}
	})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost"}, {":path", "/v1/tasks?limit=1000"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // into memory
		}
		err := write(func() error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// memory returns the memory of the process, in bytes.
func (r *run) memory() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kilobytes int64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		return 0, fmt.Errorf("the process tells no VmRSS: %w", err) // it has ended
	}
	return kilobytes << 10, nil
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
