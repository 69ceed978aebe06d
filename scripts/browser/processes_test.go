//go:build browser

package browser

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	programs "github.com/lapsehq/lapse/scripts/internal/rig"
)

// A process is a node of a fleet, that runs the program under test.
type process struct {
	*testing.T
	program, name string
	args          []string
	url           string // of its present run, each of which has a port of its own
	client        *client.Client

	run  *programs.Process
	said *bytes.Buffer // to be read once it has ended
}

// withProcesses calls do with three nodes that share a Redis. They count a node as dead after so
// long.
func withProcesses(t *testing.T, failover time.Duration, do func(redis *redistest.Server, nodes []*process)) {
	t.Helper()
	if code := programs.WithProgram(func(program string) int {
		redis := redistest.Start(t, "appendonly yes")
		var nodes []*process
		for _, name := range []string{"n1", "n2", "n3"} {
			n := &process{T: t, program: program, name: name, args: []string{"--redis", redis.URL(), "--failover-after", failover.String()}}
			n.start()
			t.Cleanup(n.kill)
			nodes = append(nodes, n)
		}
		do(redis, nodes)
		return 0
	}); code != 0 {
		t.Fatal("the program was not built")
	}
}

// start starts the process, and returns once it serves.
func (n *process) start() {
	n.Helper()
	cmd := programs.Command(n.program, append([]string{"serve", "--listen", "127.0.0.1:0", "--node", n.name}, n.args...)...)
	n.said = &bytes.Buffer{}
	cmd.Stderr = n.said
	var err error
	if n.run, err = programs.Serve(cmd, 1); err != nil {
		n.Fatal(err)
	}
	if len(n.run.URLs) == 0 {
		<-n.run.Exited
		n.Fatalf("%s did not start: %s", n.name, n.said)
	}
	n.url = n.run.URLs[0]
	if n.client, err = client.New(client.Options{URL: n.url}); err != nil {
		n.Fatal(err)
	}
}

// stop has the process stand still, and goOn move again.
func (n *process) stop() { n.run.Signal(syscall.SIGSTOP) }
func (n *process) goOn() { n.run.Signal(syscall.SIGCONT) }

// kill ends the process without a chance to clean up.
func (n *process) kill() { n.run.Kill() }

// does makes a request as the command line does.
func (n *process) does(method, path, body string) {
	n.Helper()
	if err := calls(n.url, method, path, body); err != nil {
		n.Fatal(err)
	}
}

// calls makes a request as the command line does.
func calls(url, method, path, body string) error {
	req, err := http.NewRequest(method, url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "lapse")
	req.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s %s", method, path, answer.Status, text)
	}
	return nil
}
