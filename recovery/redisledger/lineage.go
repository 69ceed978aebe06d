package redisledger

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// A lineage detects that the directory may have lost entries. A server that was restarted or
// promoted continues with the writes that it has, under a new replication id. That id is read in
// one round trip with every read and change of the directory, from the same server and after
// them. So no answer of a server that may have lost entries is taken for that of a complete one.
type lineage struct {
	mu      sync.Mutex // guards everything below
	known   map[string]bool
	settled bool      // all servers were read once: one that is not known is new
	doubts  uint64    // how often a new one was seen
	since   time.Time // when, for the last time
}

// lineageSource runs where a bucket is: on Redis Cluster, each may be on another server.
const lineageSource = `
local info = redis.pcall('INFO', 'replication')
return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
`

// askLineage adds to a pipeline a read of the replication id of a bucket's server, after the
// commands that are in it already.
func (l *Ledger) askLineage(ctx context.Context, p redis.Pipeliner, bucket uint8) *redis.Cmd {
	return p.Eval(ctx, lineageSource, []string{l.keys.IDs(bucket)})
}

// noteLineage notes the replies to askLineage.
func (l *Ledger) noteLineage(answers ...*redis.Cmd) {
	for _, answer := range answers {
		id, _ := answer.Text()
		l.noteServer(id)
	}
}

// noteServer notes the replication id of a server. If the server is new, it notifies memory that
// the directory may have lost entries.
func (l *Ledger) noteServer(id string) {
	if id == "" || strings.Trim(id, "0") == "" {
		return
	}
	g := &l.lineage
	g.mu.Lock()
	isNew := g.settled && !g.known[id]
	if g.known == nil {
		g.known = make(map[string]bool)
	}
	g.known[id] = true
	if isNew {
		g.doubts++
		g.since = time.Now()
	}
	g.mu.Unlock()
	if !isNew {
		return
	}
	l.log.Warn("a server of Redis was restarted or has taken another one's place: the directory may lack ids that callers have chosen, and calls about them go to all nodes for a while",
		"replication", id, "for", l.opts.FailoverAfter)
	l.notify(func(w recovery.Watcher) {
		if w.Doubted != nil {
			w.Doubted()
		}
	})
}

// settleLineage marks all servers as known.
func (l *Ledger) settleLineage() {
	l.lineage.mu.Lock()
	defer l.lineage.mu.Unlock()
	l.lineage.settled = true
}

// doubts returns how often the directory may have lost entries, and whether it may have within
// FailoverAfter. Every live node has noticed by then, and registers its ids anew.
func (l *Ledger) doubts() (count uint64, lately bool) {
	g := &l.lineage
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.doubts, g.doubts > 0 && elapsed(g.since) < l.opts.FailoverAfter
}
