package campaign

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A store is the Redis of a fleet.
type store interface {
	// hold gives the caller the process of Redis for itself, until it calls release.
	hold() (release func())
	// server is the one that the nodes use, for a caller of hold.
	server() *redistest.Server
	// now is its address, for any caller.
	now() string
	// entry returns the URL for one node, through proxies of its own.
	entry() (url string, proxies []*redistest.Proxy)
	// rewind and failOver make it lose the writes that it confirms from now on. The function that
	// they return ends that, once a server is there again.
	rewind() (lost func())
	failOver() (lost func())
}

// lasting are the options of servers with a file that grows with each write. Killing the process
// loses nothing of the file: the kernel has it.
var lasting = []string{"appendonly yes", "appendfsync no", "auto-aof-rewrite-percentage 0"}

// A place is what both kinds of store have: one process at a time is changed.
type place struct {
	t    *testing.T
	mu   sync.Mutex // held by the one that changes the process
	addr atomic.Pointer[string]
}

func (p *place) now() string { return *p.addr.Load() }

func (p *place) at(s *redistest.Server) { p.addr.Store(&s.Addr) }

func (p *place) hold() (release func()) {
	p.mu.Lock()
	return p.mu.Unlock
}

// rewind remembers the length of the server's file, and later cuts off what was written since.
func (p *place) rewind(s *redistest.Server) (lost func()) {
	var files []string
	s.Wait("it has one file", func(context.Context, *redis.Client) bool {
		files, _ = filepath.Glob(filepath.Join(s.Dir, "appendonlydir", "*.incr.aof"))
		return len(files) == 1
	})
	info, err := os.Stat(files[0])
	if err != nil {
		p.t.Error(err)
		return func() {}
	}
	return func() {
		s.Kill()
		if err := os.Truncate(files[0], info.Size()); err != nil {
			p.t.Error(err)
		}
		s.Start()
	}
}

// single is one server. A failover starts another one, and the proxies lead there.
type single struct {
	place
	live    *redistest.Server
	proxies []*redistest.Proxy
}

func newSingle(t *testing.T) store {
	s := &single{place: place{t: t}, live: redistest.Start(t, lasting...)}
	s.at(s.live)
	return s
}

func (s *single) server() *redistest.Server { return s.live }

func (s *single) entry() (string, []*redistest.Proxy) {
	p := redistest.NewProxy(s.t, s.live.Addr)
	s.proxies = append(s.proxies, p)
	return p.URL(), []*redistest.Proxy{p}
}

func (s *single) rewind() func() { return s.place.rewind(s.live) }

func (s *single) failOver() func() {
	replica := redistest.StartReplica(s.t, s.live, lasting...)
	replica.Do("replicaof", "no", "one")
	replica.Do("config", "rewrite") // so that it is none either when it is started again
	return func() {
		s.live.Kill()
		s.live = replica
		s.at(replica)
		for _, p := range s.proxies {
			p.Retarget(replica.Addr)
		}
	}
}

// guarded is a master with a replica behind a sentinel, which fails over when it is told.
type guarded struct {
	place
	*redistest.Sentinels
}

func newGuarded(t *testing.T) store {
	g := &guarded{place: place{t: t}, Sentinels: redistest.StartSentinel(t, lasting...)}
	g.at(g.Master)
	return g
}

func (g *guarded) server() *redistest.Server { return g.Master }

func (g *guarded) entry() (string, []*redistest.Proxy) { return g.Behind() }

func (g *guarded) rewind() func() { return g.place.rewind(g.Master) }

func (g *guarded) failOver() func() {
	g.ShutReplicaOut()
	return func() {
		g.FailOver()
		g.Rejoin()
		g.at(g.Master)
	}
}

// rest waits, unless the fleet is to end.
func (f *fleet) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-f.closing:
	}
}
