package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// answered asks until the answer has the status, and returns its body.
func answered(t *testing.T, status int, ask func() (*http.Request, error)) []byte {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		got, body := answer(t, ask)
		if got == status {
			return body
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("want %d, and the last answer was %d %s", status, got, body)
		}
	}
}

func answer(t *testing.T, ask func() (*http.Request, error)) (int, []byte) {
	t.Helper()
	request, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, body
}

func get(url string) func() (*http.Request, error) {
	return func() (*http.Request, error) { return http.NewRequest(http.MethodGet, url, nil) }
}

func post(url, body string) func() (*http.Request, error) {
	return func() (*http.Request, error) {
		request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		if err == nil {
			request.Header.Set("Content-Type", "application/json")
		}
		return request, err
	}
}

// Tasks recorded in Redis are there again under the same name, and a second server of that name is
// refused.
func TestServeOnRedis(t *testing.T) {
	server := redistest.Start(t)
	args := []string{"--redis", "redis://" + server.Addr, "--node", "a"}
	url, stop := started(t, args...)
	answered(t, http.StatusOK, get(url+"/readyz"))
	answered(t, http.StatusCreated, post(url+"/v1/tasks", `{"id":"x","topic":"t","delay":"1h"}`))

	var out, errs bytes.Buffer
	code := run(t.Context(), append([]string{"serve", "--listen", "127.0.0.1:0"}, args...), streams{&out, &errs})
	if code != exitInUse || !strings.Contains(errs.String(), "--node") || out.Len() > 0 {
		t.Errorf("a second server of the same name: exit code %d: %s%s", code, &out, &errs)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	url, _ = started(t, args...)
	answered(t, http.StatusOK, get(url+"/v1/tasks/x"))
	var ready struct {
		Ledger struct {
			OK                      bool
			Where, Version, Latency string
		}
	}
	if err := json.Unmarshal(answered(t, http.StatusOK, get(url+"/readyz")), &ready); err != nil {
		t.Fatal(err)
	}
	if l := ready.Ledger; !l.OK || !strings.Contains(l.Where, server.Addr) || l.Version == "" || l.Latency == "" {
		t.Errorf("%+v", ready)
	}
}

// A server that is started before Redis waits for it, reports that, and goes on when Redis is
// there.
func TestServeBeforeRedis(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	url, stop := started(t, "--redis", "redis://"+server.Addr, "--node", "a")
	if body := answered(t, http.StatusServiceUnavailable, get(url+"/readyz")); !bytes.Contains(body, []byte("refused")) {
		t.Errorf("/readyz does not say why: %s", body)
	}
	answered(t, http.StatusServiceUnavailable, post(url+"/v1/tasks", `{"topic":"t","delay":"1h"}`))
	server.Start()
	answered(t, http.StatusOK, get(url+"/readyz"))
	answered(t, http.StatusCreated, post(url+"/v1/tasks", `{"topic":"t","delay":"1h"}`))
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// Behind a proxy that refuses what Lapse needs a server ends with the code of a wrong setting, so
// that no service manager starts it again and again.
func TestServeBehindProxy(t *testing.T) {
	url := redistest.Refusing(t, redistest.Start(t).Addr, redistest.Unknown, "INFO")
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"serve", "--listen", "127.0.0.1:0", "--redis", url, "--node", "a"}, streams{&out, &errs})
	if code != exitUsage || !strings.Contains(errs.String(), "refuses INFO") || out.Len() > 0 {
		t.Errorf("exit code %d: %s%s", code, &out, &errs)
	}
}

// A server that is told to stop while it waits for Redis stops.
func TestStopWhileWaitingForRedis(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, stop := started(t, "--redis", "redis://"+l.Addr().String(), "--node", "a")
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestRedisSettings(t *testing.T) {
	for _, test := range []struct {
		args []string
		text string
	}{
		{[]string{"--redis", "http://x"}, "redis://"},
		{[]string{"--redis", "redis://x", "--data", "y"}, "data, redis"},
		{[]string{"--redis", "redis://x", "--listen", "127.0.0.1:0"}, "node:"},
		{[]string{"--redis", "redis://x", "--redis-shards", "5000"}, "1024"},
		{[]string{"--redis", "redis://x", "--redis-prefix", "{a}"}, "prefix"},
		{[]string{"--redis", "redis://x", "--node", "a b"}, "name"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"serve"}, test.args...), streams{&out, &errs})
		if code != exitUsage || !strings.Contains(errs.String(), test.text) || out.Len() > 0 {
			t.Errorf("%q: exit code %d: %s", test.args, code, &errs)
		}
	}
}

func TestNodeName(t *testing.T) {
	for _, test := range []struct{ addr, want string }{
		{"127.0.0.1:7480", "127.0.0.1:7480"},
		{"[2001:db8::1]:7480", "[2001:db8::1]:7480"},
	} {
		addr, err := net.ResolveTCPAddr("tcp", test.addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := nodeName(addr); got != test.want {
			t.Errorf("%s: %s", test.addr, got)
		}
	}
	everywhere := nodeName(&net.TCPAddr{IP: net.IPv6unspecified, Port: 7480})
	if host, port, err := net.SplitHostPort(everywhere); err != nil || port != "7480" || net.ParseIP(host).IsUnspecified() {
		t.Errorf("all addresses: %s, %v", everywhere, err)
	}
}
