package recovery

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultPatience is CommitterConfig.Patience unless set.
	defaultPatience = 100 * time.Millisecond
	// patienceFactor is how many times its usual answering time a server gets, if that is more
	// than the patience: a slow server answers late. patienceLimit bounds it, in multiples of
	// the patience.
	patienceFactor, patienceLimit = 10, 20
	// usualWeight is the weight of the past in the usual answering time, of one answer more.
	usualWeight = 7
	// serversKept is how many servers without a batch under way are remembered.
	serversKept = 64
)

// outages records which servers of a ledger do not answer.
//
// A server is down once it owes an answer to some batch and has answered no batch at all for
// longer than its limit. It is up again with its first answer, of any shard. A shard is down
// while its server is, and while its own batch was repeated at least once and is older than
// the limit: after an outage, shards come back one by one.
type outages struct {
	patience time.Duration
	serverOf func(shard int) string // nil: one server keeps all shards
	log      *slog.Logger

	down atomic.Int32                  // servers and shards that are down
	next atomic.Pointer[chan struct{}] // closed when one more of them is

	mu      sync.Mutex // guards everything below
	servers map[string]*server
}

// A server is what is known of one server. Guarded by outages.mu.
type server struct {
	name     string
	underWay int           // batches that were sent and not answered
	owes     time.Time     // since when it owes an answer, if it does
	usual    time.Duration // in which it answers
	isDown   bool
	watch    *time.Timer // runs watchOnce
	watched  bool        // the timer runs
}

func newOutages(patience time.Duration, serverOf func(int) string, log *slog.Logger) *outages {
	if patience <= 0 {
		patience = defaultPatience
	}
	o := &outages{patience: patience, serverOf: serverOf, log: log, servers: make(map[string]*server)}
	next := make(chan struct{})
	o.next.Store(&next)
	return o
}

func (o *outages) name(shard int) string {
	if o.serverOf == nil {
		return ""
	}
	return o.serverOf(shard)
}

// begin notes that a batch of a shard is sent now, and returns the server that owes its answer.
func (o *outages) begin(shard int, now time.Time) *server {
	name := o.name(shard)
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.servers[name]
	if s == nil {
		o.forgetLocked()
		s = &server{name: name}
		s.watch = time.AfterFunc(time.Hour, func() { o.watchOnce(s) })
		s.watch.Stop()
		o.servers[name] = s
	}
	if s.underWay++; s.underWay == 1 {
		s.owes = now
	}
	if !s.watched {
		s.watched = true
		s.watch.Reset(o.patienceLocked(s))
	}
	return s
}

// forgetLocked drops servers without a batch under way, if there are many: a cluster's
// addresses change over the years.
func (o *outages) forgetLocked() {
	if len(o.servers) < serversKept {
		return
	}
	for name, s := range o.servers {
		if s.underWay == 0 {
			delete(o.servers, name)
		}
	}
}

// end notes that a batch was answered now that was sent before; without answered, that it was given
// up.
func (o *outages) end(s *server, sent, now time.Time, answered bool) {
	if silent, wasDown := o.ended(s, sent, now, answered); wasDown {
		if after := silent.Round(time.Millisecond); s.name == "" {
			o.log.Info("the ledger records batches again", "after", after)
		} else {
			o.log.Info("the ledger's server answers batches again", "server", s.name, "after", after)
		}
	}
}

// ended reports whether the server was down until now, and for how long it was silent.
func (o *outages) ended(s *server, sent, now time.Time, answered bool) (silent time.Duration, wasDown bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.underWay--
	silent = now.Sub(s.owes)
	if answered {
		s.usual = (usualWeight*s.usual + min(now.Sub(sent), o.patienceLocked(s))) / (usualWeight + 1)
		s.owes = now
	}
	if s.isDown && (answered || s.underWay == 0) {
		s.isDown, wasDown = false, true
		o.down.Add(-1)
	}
	return silent, wasDown
}

func (o *outages) patienceLocked(s *server) time.Duration {
	return min(max(o.patience, patienceFactor*s.usual), patienceLimit*o.patience)
}

// watchOnce announces a server that has just gone down.
func (o *outages) watchOnce(s *server) {
	if silent, isDown := o.isSilent(s); isDown {
		o.announce()
		const meanwhile = "what memory decides is answered before it is recorded"
		if since := silent.Round(time.Millisecond); s.name == "" {
			o.log.Warn("the ledger has not recorded a batch yet, its storage is slow or stands still; "+meanwhile, "for", since)
		} else {
			o.log.Warn("the ledger's server does not answer batches; "+meanwhile, "server", s.name, "for", since)
		}
	}
}

// isSilent reports whether a server has just gone down, and for how long it was silent. If it
// owes an answer and is not down yet, isSilent sets its timer again.
func (o *outages) isSilent(s *server) (silent time.Duration, isDown bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.watched = false
	if s.underWay == 0 || s.isDown {
		return 0, false
	}
	silent = time.Since(s.owes)
	if limit := o.patienceLocked(s); silent < limit {
		s.watched = true
		s.watch.Reset(limit - silent)
		return silent, false
	}
	s.isDown = true
	return silent, true
}

// announce counts one more server or shard that is down, and wakes the waiting callers.
func (o *outages) announce() {
	o.down.Add(1)
	next := make(chan struct{})
	close(*o.next.Swap(&next))
}

// isDown reports whether the server that keeps a shard is down.
func (o *outages) isDown(shard int) bool {
	if o.down.Load() == 0 {
		return false
	}
	name := o.name(shard)
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.servers[name]
	return s != nil && s.isDown
}

// Down reports whether the server that keeps a shard is known not to answer: what is
// submitted now is written when it answers again, and no caller should wait for that. Down
// never waits.
func (c *Committer[T]) Down(shard int) bool {
	return c.AnyDown() && (c.outages.isDown(shard) || (*c.lanes.Load())[shard].failing.Load())
}

// AnyDown reports whether Down is true for some shard. It is cheap.
func (c *Committer[T]) AnyDown() bool { return c.outages.down.Load() > 0 }

// NextDown returns a channel that is closed when Down becomes true for one shard more, or
// for several.
func (c *Committer[T]) NextDown() <-chan struct{} { return *c.outages.next.Load() }
