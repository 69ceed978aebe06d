//go:build fault

package crash

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// TestGarbage sends to the socket what no client would send. The server keeps the task that it had,
// accepts another one, and goes on.
func TestGarbage(t *testing.T) {
	s := newServer(t)
	r := s.start()
	r.ready(t)
	if status, _, err := r.call(http.MethodPost, "/v1/tasks", []byte(`{"id":"kept","topic":"crash","delay":"1h"}`), nil); outcome(status, err) != Done {
		t.Fatalf("answered %d, %v", status, err)
	}

	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise) // never fails
	for name, sent := range map[string][]byte{
		"noise":               noise,
		"nothing":             nil,
		"tls":                 {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03},
		"half a request line": []byte("POST /v1/ta"),
		"half a header":       []byte("POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Le"),
		"half a body":         []byte("POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"topic\":\"crash\","),
		"two lengths":         []byte("POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}"),
		"negative length":     []byte("POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"),
		"broken chunks":       []byte("POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"),
		"endless header":      []byte("GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 2<<20)),
		"huge length":         []byte("POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999999\r\n\r\n{"),
		"deep nesting":        post("/v1/tasks", `{"topic":"crash","payload":`+strings.Repeat("[", 60_000)),
		"not utf-8":           post("/v1/tasks", "{\"topic\":\"crash\",\"payload\":\"\xff\xfe\"}"),
		"noise as json":       post("/v1/tasks/batch", string(noise)),
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, r)
			defer conn.Close()
			_, _ = conn.Write(sent) // may be cut off while it is sending
			_ = conn.(*net.TCPConn).CloseWrite()
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			answer, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
			if bytes.Contains(answer, []byte("goroutine")) || bytes.HasPrefix(answer, []byte("HTTP/1.1 5")) || bytes.HasPrefix(answer, []byte("HTTP/1.1 2")) {
				t.Errorf("answered: %.300s", answer)
			}
		})
	}

	if status, _, err := r.call(http.MethodGet, "/v1/tasks/kept", nil, nil); outcome(status, err) != Done {
		t.Errorf("the task from before: %d, %v", status, err)
	}
	if status, _, err := r.call(http.MethodPost, "/v1/tasks", []byte(`{"topic":"crash","delay":"1h"}`), nil); outcome(status, err) != Done {
		t.Errorf("another task: %d, %v", status, err)
	}
	var list struct{ Tasks []pulled }
	if _, _, err := r.call(http.MethodGet, "/v1/tasks?topic="+topic, nil, &list); err != nil || len(list.Tasks) != 2 {
		t.Errorf("want the two tasks, got %d, %v", len(list.Tasks), err)
	}
}

func post(path, body string) []byte {
	var b bytes.Buffer
	req, err := http.NewRequest(http.MethodPost, "http://x"+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if err := req.Write(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// dial opens a connection to a run.
func dial(t *testing.T, r *run) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
