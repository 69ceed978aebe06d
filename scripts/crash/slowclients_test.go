//go:build fault

package crash

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Clients without a token open 12,000 connections, send incomplete requests, and open new
// connections when they are cut off. The server still answers other clients, and at the address for
// probes as if there were no slow ones.
func TestSlowClients(t *testing.T) {
	const number, token = 12_000, "the-token-of-this-test"
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if files.Cur < number+1000 {
		files.Cur = files.Max
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Max < number+1000 {
			t.Skipf("%d files may be open, which are too few: %v", files.Max, err)
		}
	}
	s := newServer(t)
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	text := fmt.Sprintf("- {name: all, scopes: [admin], sha256: %x}\n", sha256.Sum256([]byte(token)))
	if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.more = []string{"--token-file", tokens, "--health-listen", "127.0.0.1:0"}
	r := s.start()
	r.ready(t)
	other := newServer(t).start()
	other.ready(t)
	before := (&punctual{t: t, run: r, token: token}).measure()

	stop := make(chan struct{})
	var slow sync.WaitGroup
	address := strings.TrimPrefix(r.base, "http://")
	for i := range number {
		slow.Go(func() { // connects again whenever it is cut off
			said := []string{"", "GET /v1/stats HTTP/1.1\r\nHost: localhost\r\n", "POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"}[i%3]
			for {
				if c, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
					_, _ = c.Write([]byte(said))
					over := make(chan struct{})
					go func() {
						defer close(over)
						for b := make([]byte, 512); ; {
							if _, err := c.Read(b); err != nil {
								return
							}
						}
					}()
					select {
					case <-over:
					case <-stop:
					}
					c.Close()
					<-over
				}
				select {
				case <-time.After(5 * time.Second):
				case <-stop:
					return
				}
			}
		})
	}
	defer slow.Wait()
	defer close(stop)
	<-time.After(5 * time.Second) // until the connections are open

	probes := []*asker{{url: r.base + "/healthz"}, {url: r.health + "/healthz"}, {url: r.health + "/readyz"}, {url: r.health + "/metrics", token: token}}
	var asking sync.WaitGroup
	for _, p := range probes {
		asking.Go(func() { p.ask(13) })
	}
	// The machine may be busy meanwhile, which a second server shows, too.
	var during, spared time.Duration
	var measuring sync.WaitGroup
	measuring.Go(func() { during = (&punctual{t: t, run: r, token: token}).measure() })
	measuring.Go(func() { spared = (&punctual{t: t, run: other}).measure() })
	measuring.Wait()
	asking.Wait()
	t.Logf("p99 lateness: %v, then %v, of another server %v", before, during, spared)
	for _, p := range probes {
		t.Logf("%s: the slowest answer took %v", p.url, p.worst.Round(time.Millisecond))
		if len(p.failures) > 0 || p.worst > time.Second {
			t.Errorf("%s: %d of 13 failed, the slowest took %v: %q", p.url, len(p.failures), p.worst, p.failures)
		}
	}
	if during > max(5*max(before, spared), 50*time.Millisecond) {
		t.Errorf("p99 lateness %v, %v before, %v of another server", during, before, spared)
	}
}

// An asker asks for one page, over a new connection each time.
type asker struct {
	url, token string

	worst    time.Duration
	failures []string
}

func (p *asker) ask(times int) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for range times {
		began := time.Now()
		if status, err := p.once(client); err != nil {
			p.failures = append(p.failures, err.Error())
		} else if status != http.StatusOK {
			p.failures = append(p.failures, http.StatusText(status))
		}
		p.worst = max(p.worst, time.Since(began))
		<-time.After(500 * time.Millisecond)
	}
}

func (p *asker) once(client *http.Client) (int, error) {
	req, err := http.NewRequest(http.MethodGet, p.url, nil)
	if err != nil {
		return 0, err
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
