package redisledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A network delivers scripts as badly as it can: some twice, some late, some after later ones, some
// never; and it loses answers. It keeps a copy of every script that was ever sent.
type network struct {
	rng  *rand.Rand
	sent [][]any
	calm bool // everything is delivered at once and answered
}

var errNoAnswer = errors.New("no answer")

func (n *network) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *network) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (n *network) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if n.calm || cmd.Name() != "evalsha" && cmd.Name() != "eval" {
			return next(ctx, cmd)
		}
		n.sent = append(n.sent, copied(cmd.Args()))
		if n.rng.IntN(2) == 0 {
			n.deliverOld(ctx, next)
		}
		switch n.rng.IntN(6) {
		case 0: // it never arrives, or late
			cmd.SetErr(errNoAnswer)
			return errNoAnswer
		case 1: // its answer is lost
			_ = next(ctx, cmd)
			cmd.SetErr(errNoAnswer)
			return errNoAnswer
		case 2: // it arrives twice
			_ = next(ctx, redis.NewCmd(ctx, copied(cmd.Args())...))
		}
		return next(ctx, cmd)
	}
}

// deliverOld delivers some of the earlier scripts, in any order: often recent ones, sometimes very
// old ones.
func (n *network) deliverOld(ctx context.Context, next redis.ProcessHook) {
	for range 1 + n.rng.IntN(4) {
		at := n.rng.IntN(len(n.sent))
		if n.rng.IntN(3) > 0 {
			at = max(0, len(n.sent)-1-n.rng.IntN(8))
		}
		_ = next(ctx, redis.NewCmd(ctx, copied(n.sent[at])...))
	}
}

// copied makes a copy of a command that outlives its arguments.
func copied(args []any) []any {
	c := make([]any, len(args))
	for i, a := range args {
		if s, ok := a.(*string); ok {
			a = *s
		}
		c[i] = a
	}
	return c
}

// Whatever a network does to scripts, a batch that counts as written was written once, in its turn,
// and nothing else ever changes. The test has several owners, whose late scripts stay in flight,
// and memory for new records or none.
func TestReorderedScripts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "maxmemory-policy noeviction")
	seed := rand.Uint64()
	if set := os.Getenv("LEDGERTEST_SEED"); set != "" {
		seed, _ = strconv.ParseUint(set, 10, 64)
	}
	t.Logf("LEDGERTEST_SEED=%d", seed)
	net := &network{rng: rand.New(rand.NewPCG(seed, 0))}
	observer := server.Client()
	defer observer.Close()

	v := oneShard(server.URL())
	model := content{}
	spots := map[string]recovery.Spot{}
	refused := 0
	for range 8 {
		l := v.open(t)
		l.member.FailoverAfter = 1 << 62 // no heartbeats beside
		l.client.AddHook(net)
		eventually(t, "the shard is adopted", func() bool {
			_, err := l.Adopt(t.Context())
			return err == nil
		})
		adopted := l.member.Term(0).Token
		for range 60 {
			b := randomBatch(net.rng, spots, model)
			for {
				observer.ConfigSet(t.Context(), "maxmemory", []string{"0", "1mb"}[net.rng.IntN(2)])
				err := l.Apply(t.Context(), 0, b)
				if err == nil {
					break
				}
				if errors.Is(err, recovery.ErrFull) {
					forget(b, spots, model)
					refused++
					break
				}
				if !errors.Is(err, errNoAnswer) {
					t.Fatalf("Apply: %v", err)
				}
			}
			if diff := cmp.Diff(model, held(t, observer, l.member.Term(0).Keys)); diff != "" {
				t.Fatalf("after a batch (-want +got):\n%s", diff)
			}
			if got := l.member.Term(0).Token; got != adopted {
				t.Fatalf("the owner had to claim again: %v after %v", got, adopted)
			}
		}
		if net.rng.IntN(2) == 0 {
			// Its outcome is open.
			_ = l.Apply(t.Context(), 0, randomBatch(net.rng, spots, content{}))
			settle(t, observer, l, spots, model)
		}
		v.crash()
	}
	if refused == 0 {
		t.Error("nothing was ever refused")
	}
}

// randomBatch makes a batch and writes it to the model.
func randomBatch(rng *rand.Rand, spots map[string]recovery.Spot, model content) *recovery.Batch {
	b := new(recovery.Batch)
	for _, n := range rng.Perm(12)[:1+rng.IntN(6)] {
		id := fmt.Sprint("task-", n)
		c := recovery.Change{ID: []byte(id), From: spots[id], To: pending(noon + int64(rng.IntN(5)))}
		switch r := rng.IntN(10); {
		case c.From.Place != recovery.Nowhere && r < 3:
			c.To = recovery.Spot{}
		case c.From.Place == recovery.Pending && r < 6:
			c.To = recovery.Spot{Place: recovery.Dead, At: noon + int64(rng.IntN(5)), Label: fmt.Sprint("topic-", rng.IntN(2))}
		}
		delete(model, id)
		delete(model, "dead "+id)
		spots[id] = c.To
		if c.To.Place != recovery.Nowhere {
			c.Data = fmt.Append(nil, "v", rng.Uint32())
			name := id
			if c.To.Place == recovery.Dead {
				name = "dead " + id
			}
			model[name] = string(c.Data)
		}
		b.Add(c)
	}
	return b
}

// forget takes the creations of a batch out of the model.
func forget(b *recovery.Batch, spots map[string]recovery.Spot, model content) {
	for i := range b.Len() {
		if c := b.At(i); c.Creation() {
			delete(model, string(c.ID))
			delete(spots, string(c.ID))
		}
	}
}

// settle lets the shard decide what an unanswered batch has done, once no copy of it can have an
// effect any more: after the next owner's claim.
func settle(t *testing.T, c *redis.Client, l *Ledger, spots map[string]recovery.Spot, model content) {
	t.Helper()
	s := l.member.Term(0)
	fence := layout.NewToken("fence", "f", s.Token.Epoch+1)
	if err := conn.ClaimScript.Run(t.Context(), c, s.Keys.Living(), s.Token.String(), fence.String(), 0).Err(); err != nil {
		t.Fatal(err)
	}
	mine := layout.NewToken(l.opts.Node, "absent", fence.Epoch+1)
	if err := conn.ClaimScript.Run(t.Context(), c, s.Keys.Living(), fence.String(), mine.String(), 0).Err(); err != nil {
		t.Fatal(err)
	}
	clear(model)
	clear(spots)
	for name, data := range held(t, c, s.Keys) {
		model[name] = data
	}
	for id, value := range c.HGetAll(t.Context(), s.Keys.Tasks()).Val() {
		if !layout.IsReserved(id) {
			at, _, _ := layout.DecodePending(value)
			spots[id] = pending(at)
		}
	}
	for _, member := range c.ZRange(t.Context(), s.Keys.DeadIndex(), 0, -1).Val() {
		label, at, id, _ := layout.DecodeDeadRef(member)
		spots[id] = recovery.Spot{Place: recovery.Dead, At: at, Label: label}
	}
}
