//go:build fault

package campaign

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A store is the Redis of a fleet.
type store interface {
	// entry returns the URL for one node, through proxies of its own.
	entry() (url string, proxies []*redistest.Proxy)
	// lose makes it lose the writes that it confirms from now on. The function that it returns ends
	// that, once a server is there again.
	lose() (lost func())
	kill()
	start()
	pause()
	resume()
}

// single is one server, with a file that grows with each write. Killing the process loses nothing
// of the file: the kernel has it.
type single struct {
	t *testing.T
	*redistest.Server
}

func newSingle(t *testing.T) store {
	return single{t, redistest.Start(t, "appendonly yes", "appendfsync no", "auto-aof-rewrite-percentage 0")}
}

func (s single) entry() (string, []*redistest.Proxy) {
	p := redistest.NewProxy(s.t, s.Addr)
	return p.URL(), []*redistest.Proxy{p}
}

// lose remembers the length of the file, and later cuts off what was written since.
func (s single) lose() func() {
	files, err := filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
	if err != nil || len(files) != 1 {
		s.t.Fatalf("the file of Redis: %q, %v", files, err)
	}
	info, err := os.Stat(files[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		s.Kill()
		if err := os.Truncate(files[0], info.Size()); err != nil {
			s.t.Fatal(err)
		}
		s.Start()
	}
}

func (s single) kill()   { s.Kill() }
func (s single) start()  { s.Start() }
func (s single) pause()  { s.Pause() }
func (s single) resume() { s.Resume() }

// guarded is a master with a replica behind a sentinel. Its faults are failovers.
type guarded struct {
	*redistest.Sentinels
}

func newGuarded(t *testing.T) store { return guarded{redistest.StartSentinel(t)} }

func (g guarded) entry() (string, []*redistest.Proxy) { return g.Behind() }

// lose cuts the replica off from new writes, and then makes it take over.
func (g guarded) lose() func() {
	g.ShutReplicaOut()
	return func() { g.FailOver(); g.Rejoin() }
}

func (g guarded) kill()   {}
func (g guarded) start()  {}
func (g guarded) pause()  { g.Master.Pause() }
func (g guarded) resume() { g.Master.Resume() }

// rest waits, unless the fleet is to end.
func (f *fleet) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.closing:
	}
}
