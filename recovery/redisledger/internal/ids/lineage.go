package ids

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
	"github.com/redis/go-redis/v9"
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
func (d *Directory) askLineage(ctx context.Context, p redis.Pipeliner, bucket uint8) *redis.Cmd {
	return p.Eval(ctx, lineageSource, []string{d.Keys.IDs(bucket)})
}

// noteLineage notes the replies to askLineage.
func (d *Directory) noteLineage(answers ...*redis.Cmd) {
	for _, answer := range answers {
		id, _ := answer.Text()
		d.NoteServer(id)
	}
}

// NoteServer notes the replication id of a server. If the server is new, the
// directory may have lost entries.
func (d *Directory) NoteServer(id string) {
	if id == "" || strings.Trim(id, "0") == "" {
		return
	}
	g := &d.lineage
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
	d.Log.Warn("a server of Redis was restarted or has taken another one's place: the directory may lack ids that callers have chosen, and calls about them go to all nodes for a while",
		"replication", id, "for", d.FailoverAfter)
	d.Doubted()
}

// Settle marks all servers as known.
func (d *Directory) Settle() {
	d.lineage.mu.Lock()
	defer d.lineage.mu.Unlock()
	d.lineage.settled = true
}

// Doubts returns how often the directory may have lost entries, and whether it may have within
// FailoverAfter. Every live node has noticed by then, and registers its ids anew.
func (d *Directory) Doubts() (count uint64, lately bool) {
	g := &d.lineage
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.doubts, g.doubts > 0 && clock.Since(g.since) < d.FailoverAfter
}
