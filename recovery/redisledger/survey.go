package redisledger

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
)

// A holding is one shard of any node, with the token that was read.
type holding struct {
	node     string
	index    int
	home     recovery.Home
	raw      string
	token    token
	affirmed string // how often its owner came back after a silence; empty: never
}

// A shardName names one shard of any node.
type shardName struct {
	node  string
	index int
}

// A survey is who holds what, over all shards of all nodes whose entries can be read.
type survey struct {
	holdings []holding
	partial  map[string]bool // nodes of whose shards some could not be read
}

// textOf is the i-th field of those that were asked for, empty if there is none.
func textOf(fields []any, i int) string {
	if i >= len(fields) {
		return ""
	}
	text, _ := fields[i].(string)
	return text
}

// sizes are how many pending records n shards have, whose keys are asked for.
func (l *Ledger) sizes(ctx context.Context, n int, keys func(i int) shardKeys) ([]int64, error) {
	members := make([]*redis.IntCmd, n)
	err := l.pipeline(ctx, func(p redis.Pipeliner) {
		for i := range members {
			k := keys(i)
			members[i] = p.SCard(ctx, k.pending())
		}
	})
	sizes := make([]int64, n)
	for i, m := range members {
		sizes[i] = max(0, m.Val()-1) // one of them keeps the set
	}
	return sizes, err
}

// survey reads the tokens of all shards. Those that are on a server which does not
// answer are left out.
func (l *Ledger) survey(ctx context.Context) (survey, error) {
	w := &l.others
	found := survey{partial: map[string]bool{}}
	began := time.Now()
	w.mu.Lock()
	for name, s := range w.nodes {
		if s.fault != nil || s.number == 0 {
			continue
		}
		for n := range s.entry.shards() {
			found.holdings = append(found.holdings, holding{node: name, index: n, home: recovery.NewHome(s.number, n)})
		}
	}
	w.mu.Unlock()

	heads := make([]*redis.SliceCmd, len(found.holdings))
	p := l.client.Pipeline()
	for i := range found.holdings {
		h := &found.holdings[i]
		keys := l.keys.shard(h.node, h.index)
		heads[i] = p.HMGet(ctx, keys.tasks(), ownerField, affirmField)
	}
	_, _ = p.Exec(ctx) // each has its own error
	if err := ctx.Err(); err != nil {
		return survey{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	tokens := make(map[recovery.Home]token, len(found.holdings))
	read := found.holdings[:0]
	for i, h := range found.holdings {
		head, err := heads[i].Result()
		if err != nil {
			found.partial[h.node] = true
			if before, known := w.tokens[h.home]; known {
				tokens[h.home] = before
			}
			continue
		}
		h.raw, h.affirmed = textOf(head, 0), textOf(head, 1)
		if h.token, err = parseToken(h.raw); err != nil {
			found.partial[h.node] = true
			continue
		}
		tokens[h.home] = h.token
		read = append(read, h)
	}
	found.holdings = read
	w.tokens, w.surveyed = tokens, began
	return found, nil
}
