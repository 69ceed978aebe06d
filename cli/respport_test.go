package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/internal/checkup"
)

// redisClient is a connection that sends lines and reads the first line of each answer.
type redisClient struct {
	t  *testing.T
	nc net.Conn
	in *bufio.Reader
}

func dialed(t *testing.T, nc net.Conn, err error) *redisClient {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(time.Minute))
	return &redisClient{t, nc, bufio.NewReader(nc)}
}

func dialRedis(t *testing.T, network, address string) *redisClient {
	t.Helper()
	nc, err := net.Dial(network, address)
	return dialed(t, nc, err)
}

func (c *redisClient) ask(line string) string {
	c.t.Helper()
	if _, err := io.WriteString(c.nc, line+"\r\n"); err != nil {
		c.t.Fatal(err)
	}
	answer, err := c.in.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

func TestRedisListen(t *testing.T) {
	urls, _, stop := startedAt(t, 2, nil, "--data", t.TempDir(), "--redis-listen", "127.0.0.1:0")
	c := dialRedis(t, "tcp", strings.TrimPrefix(urls[1], "redis://"))
	if answer := c.ask("PING"); answer != "+PONG" {
		t.Errorf("PING is answered %s", answer)
	}
	for status := 0; status != 200; { // replay is soon over
		status, _ = got(t, http.DefaultClient, urls[0]+"/readyz")
	}
	if _, text := got(t, http.DefaultClient, urls[0]+"/metrics"); !strings.Contains(text, "\nlapse_resp_connections 1\n") ||
		!strings.Contains(text, `lapse_resp_commands_total{command="ping",outcome="done"} 1`) {
		t.Error("the metrics do not know the connection")
	}
	// Its values may be larger than payloads of HTTP.
	large := strings.Repeat("v", 200_000)
	if answer := c.ask("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$200000\r\n" + large); answer != "+OK" {
		t.Errorf("SET of 200,000 bytes is answered %s", answer)
	}
	if a, err := http.Post(urls[0]+"/v1/tasks", "application/json", strings.NewReader(`{"topic":"t","payload":"`+large+`"}`)); err != nil || a.StatusCode != 413 {
		t.Errorf("the same over HTTP: %v, %v", a, err)
	} else {
		a.Body.Close()
	}
	if answer := c.ask("SUBSCRIBE news"); answer != "*3" {
		t.Errorf("SUBSCRIBE is answered %s", answer)
	}
	for range 5 { // the rest of that answer
		if _, err := c.in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	state := `"redis":{"serving":true,"address":"` + urls[1] + `","connections":1,"subscribers":1,"subscribers_cut":0,"events_unsent":0,"events_lost":0}`
	for _, path := range []string{"/readyz", "/v1/stats"} {
		if _, text := got(t, http.DefaultClient, urls[0]+path); !strings.Contains(text, state) {
			t.Errorf("%s does not tell of the port: %s", path, text)
		}
	}
	// An idle client does not delay the stop.
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if _, err := c.in.ReadByte(); err != io.EOF {
		t.Errorf("the connection was not closed: %v", err)
	}
}

// The bound of one address holds at the port for clients of Redis, too.
func TestRedisConnectionsOfOneAddress(t *testing.T) {
	var bad faults
	s := settings{}
	s.MaxConnectionsPerAddress = 7
	if n := s.redisPort(&bad).cfg.MaxConnectionsPerAddress; n != 7 {
		t.Errorf("one address may have %d connections", n)
	}
}

// While the ledger is away, the port is open and says so.
func TestRedisListenBeforeTheLedger(t *testing.T) {
	urls, _, stop := startedAt(t, 2, nil, "--redis", "redis://127.0.0.1:1", "--node", "a", "--redis-listen", "127.0.0.1:0")
	c := dialRedis(t, "tcp", strings.TrimPrefix(urls[1], "redis://"))
	if got := c.ask("PING"); got != "+PONG" {
		t.Errorf("PING is answered %s", got)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// Tokens are passwords. One that is taken away holds no longer, also for clients that are there.
func TestRedisTokens(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.save(a.server("server"))
	tokens := written(t, "tokens.yaml", lineOf("a", "old", "read"))
	urls, _, stop := startedAt(t, 2, nil, "--data", t.TempDir(), "--token-file", tokens, "--tls-cert", cert, "--tls-key", key, "--redis-listen", "127.0.0.1:0")
	address, secret := strings.CutPrefix(urls[1], "rediss://")
	if !secret {
		t.Fatalf("announced %s", urls[1])
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	nc, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool})
	c := dialed(t, nc, err)
	for _, step := range [][2]string{
		{"PING", "-NOAUTH Authentication required."},
		{"AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled."},
		{"AUTH default old", "+OK"},
		{"PING", "+PONG"},
	} {
		if got := c.ask(step[0]); got != step[1] {
			t.Errorf("%s is answered %s", step[0], got)
		}
	}
	overwrite(t, tokens, written(t, "tokens.yaml", lineOf("b", "new", "read")))
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for c.ask("PING") != "-NOAUTH Authentication required." { // until the signal has arrived
	}
	if got := c.ask("AUTH new"); got != "+OK" {
		t.Errorf("the new token is answered %s", got)
	}
	if code := stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A socket file is its owner's alone unless the setting says otherwise. One that a dead process has
// left is replaced, and that of a living one is not.
func TestRedisSocketFile(t *testing.T) {
	dir, err := os.MkdirTemp("", "lapse")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()
	for mode, query := range map[os.FileMode]string{0o600: "", 0o660: "?mode=0660"} {
		_, _, stop := startedAt(t, 1, nil, "--data", t.TempDir(), "--redis-listen", "unix://"+path+query)
		if got := dialRedis(t, "unix", path).ask("PING"); got != "+PONG" {
			t.Errorf("PING is answered %s", got)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("the mode is %v, want %v: %v", info.Mode(), mode, err)
		}
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--redis-listen", "unix://" + path}, streams{&out, &errs})
		if code != exitInUse || !strings.Contains(errs.String(), "--redis-listen names another one") {
			t.Errorf("a second server: exit code %d: %s", code, &errs)
		}
		_, found, _ := diagnosed(t, "--data", t.TempDir(), "--redis-listen", "unix://"+path)
		if f := found["redis-listen"]; f.Verdict != checkup.Warn || !strings.Contains(f.Found, "a server of the protocol of Redis answers there") {
			t.Errorf("doctor finds %+v", f)
		}
		if code := stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("the file is left")
		}
	}
}

// A file that is no socket is left as it is, also behind a symbolic link, and the server does not
// start.
func TestRedisSocketFileIsNoOtherFile(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "orders.csv"), filepath.Join(dir, "link")
	overwrite(t, file, written(t, "orders.csv", "42,99"))
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		var out, errs bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		code := run(ctx, []string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--redis-listen", "unix://" + path}, streams{&out, &errs})
		cancel()
		if code == exitOK || !strings.Contains(errs.String(), "redis-listen: "+path+": the file there is no socket, and is left as it is; --redis-listen names another one") {
			t.Errorf("%s: exit code %d: %s", path, code, &errs)
		}
		if text, err := os.ReadFile(path); !strings.Contains(string(text), "42,99") {
			t.Errorf("%s has %q: %v", path, text, err)
		}
		if _, found, _ := diagnosed(t, "--data", t.TempDir(), "--redis-listen", "unix://"+path); found["redis-listen"].Verdict != checkup.Fail {
			t.Errorf("doctor finds %+v", found["redis-listen"])
		}
	}
}

func TestRedisListenRefused(t *testing.T) {
	for text, args := range map[string][]string{
		"redis-listen: must not be the address of listen, whi":  {"--listen", "127.0.0.1:7480", "--redis-listen", "localhost:7480"},
		"redis-listen: 0.0.0.0:7480 can be reached from othe":   {"--listen", "127.0.0.1:7480", "--redis-listen", "0.0.0.0:7480"},
		"redis-listen: must not be the address of health-list":  {"--health-listen", "0.0.0.0:7490", "--redis-listen", "127.0.0.1:7490", "--insecure"},
		"redis-listen: want host:port":                          {"--redis-listen", "7479"},
		"redis-listen: 0.0.0.0:0 can be reached from other mac": {"--redis-listen", "0.0.0.0:0"},
		"redis-listen: want a mode":                             {"--redis-listen", "unix:///tmp/s?mode=9"},
		"redis-listen: want host:port or unix:///path":          {"--redis-listen", "unix://host/path"},
		`resp-topics: want PREFIX=TOPIC, not "a"`:               {"--resp-topics", "a"},
		`resp-topics: the prefix "a" is given twice`:            {"--resp-topics", "a=b", "--resp-topics", "a=c"},
		`resp_topics["a"]: `:                                    {"--resp-topics", "a= "},
		"resp_max_command must be from 65536 to 1073741824":     {"--resp-max-command", "7"},
		"resp_max_value must be from 1 to 16777216":             {"--resp-max-value", "16777217"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0"}, args...), streams{&out, &errs})
		if code != exitUsage || !strings.Contains(errs.String(), text) || strings.Count(errs.String(), "redis-listen: ") > 1 {
			t.Errorf("%q: exit code %d: %s", args, code, &errs)
		}
	}
}

func TestDoctorLooksAtTheRedisPort(t *testing.T) {
	_, found, _ := diagnosed(t, "--data", t.TempDir(), "--redis-listen", "0.0.0.0:0", "--insecure")
	if f := found["redis-listen"]; f.Verdict != checkup.Warn || !strings.Contains(f.Found, "no token is needed") || !strings.Contains(f.Do, "token-file") {
		t.Errorf("open to others: %+v", f)
	}
	_, found, _ = diagnosed(t, "--data", t.TempDir(), "--redis-listen", "127.0.0.1:0", "--max-connections", "10", "--resp-max-connections", "7")
	if f := found["redis-listen"]; f.Verdict != checkup.OK {
		t.Errorf("free: %+v", f)
	}
	if f := found["open files"]; !strings.Contains(f.Found, "2065 are needed") {
		t.Errorf("open files: %+v", f)
	}
}
