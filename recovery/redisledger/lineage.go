package redisledger

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// A lineage tells whether the directory may have lost entries. A server that was restarted
// or promoted goes on with the writes that it has, and has another replication id than before.
// That id is read in one round trip with every look into the directory and every change of
// it, from the same server and after them: so no answer of a server that may have lost entries
// is taken for that of one that has them all.
type lineage struct {
	mu      sync.Mutex // guards everything below
	known   map[string]bool
	settled bool      // all servers were asked once: one that is not known is new
	doubts  uint64    // how often a new one was met
	since   time.Time // when, for the last time
}

// lineageSource runs where a bucket is: on Redis Cluster, each may be on another server.
const lineageSource = `
local info = redis.pcall('INFO', 'replication')
return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or ''
`

// askLineage asks the server of a bucket, after what was put into the pipeline before.
func (l *Ledger) askLineage(ctx context.Context, p redis.Pipeliner, bucket uint8) *redis.Cmd {
	return p.Eval(ctx, lineageSource, []string{l.keys.ids(bucket)})
}

// noteLineage takes note of what servers have answered to askLineage.
func (l *Ledger) noteLineage(answers ...*redis.Cmd) {
	for _, answer := range answers {
		id, _ := answer.Text()
		l.noteServer(id)
	}
}

// noteServer takes note of the replication id of a server. If the server is new, memory is
// told that the directory may have lost entries.
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
	l.log.Warn("a server of Redis was restarted or has taken another one's place: ids that callers have chosen may not be in the directory, and all nodes are asked for them for a while",
		"replication", id, "for", l.opts.FailoverAfter)
	l.notify(func(w recovery.Watcher) {
		if w.Doubted != nil {
			w.Doubted()
		}
	})
}

// settleLineage says that all servers are known.
func (l *Ledger) settleLineage() {
	l.lineage.mu.Lock()
	defer l.lineage.mu.Unlock()
	l.lineage.settled = true
}

// doubts tells how often the directory may have lost entries, and whether it did so within
// FailoverAfter. Every node that lives has noticed by then, and registers its ids anew.
func (l *Ledger) doubts() (count uint64, lately bool) {
	g := &l.lineage
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.doubts, g.doubts > 0 && elapsed(g.since) < l.opts.FailoverAfter
}
