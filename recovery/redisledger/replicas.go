package redisledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds of Options.WaitTimeout. The longest leaves room for the answer within ioTimeout.
const (
	DefaultWaitTimeout = 500 * time.Millisecond
	maxWaitTimeout     = 900 * time.Millisecond
)

// maxReplicas bounds Options.WaitReplicas; no master has nearly as many.
const maxReplicas = 64

// sendBatch runs apply.lua, and with Options.WaitReplicas waits for replicas to receive what it
// has written. While too few have it, the batch counts as unanswered although it was written,
// and is repeated until they do.
func (l *Ledger) sendBatch(ctx context.Context, s *shard, command []any) (verdict, error) {
	if l.opts.WaitReplicas == 0 {
		return judge(applyScript.send(ctx, l.client, command))
	}
	w := witness{ledger: l, key: s.keys.Tasks()}
	v, err := judge(applyScript.send(ctx, &w, command))
	if err != nil || v.code == 0 {
		return v, err // a refused batch needs no replica
	}
	err = w.err
	if lack := int64(l.opts.WaitReplicas) - w.replicas; err == nil && lack > 0 {
		err = fmt.Errorf("written, but only %d of %d replicas have it after %v", w.replicas, l.opts.WaitReplicas, l.opts.WaitTimeout)
	}
	l.unconfirmed.Store(err != nil)
	return v, err
}

// A witness sends a command to the server that has a key, and then asks on the same connection
// how many replicas have received the writes of that connection.
type witness struct {
	ledger   *Ledger
	key      string
	replicas int64 // that have it
	err      error // of WAIT
}

// Process implements processor.
func (w *witness) Process(ctx context.Context, cmd redis.Cmder) error {
	server, err := w.ledger.serverOf(ctx, w.key)
	if err != nil {
		cmd.SetErr(err)
		return err
	}
	err = w.send(ctx, server, cmd, false)
	cluster, ok := w.ledger.client.(*redis.ClusterClient)
	if !ok || err == nil {
		return err
	}
	// Redirections are followed here and nowhere else: Cluster's own client does not say on
	// which connection to wait.
	cluster.ReloadState(ctx)
	asking := redis.HasErrorPrefix(err, "ASK")
	if !asking && !redis.HasErrorPrefix(err, "MOVED") {
		return err
	}
	words := strings.Fields(err.Error())
	var target *redis.Client
	if err := cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		if c.Options().Addr == words[len(words)-1] {
			target = c
		}
		return nil
	}); err != nil || target == nil {
		return cmd.Err()
	}
	cmd.SetErr(nil)
	return w.send(ctx, target, cmd, asking)
}

// send sends a command and WAIT in one pipeline.
func (w *witness) send(ctx context.Context, server *redis.Client, cmd redis.Cmder, asking bool) error {
	p := server.Pipeline()
	if asking {
		p.Do(ctx, "asking")
	}
	_ = p.Process(ctx, cmd)
	wait := p.Do(ctx, "wait", w.ledger.opts.WaitReplicas, w.ledger.opts.WaitTimeout.Milliseconds())
	_, _ = p.Exec(ctx) // each command has its own error
	w.replicas, w.err = wait.Int64()
	return cmd.Err()
}

// replicaSetting begins warnings about replicas.
const replicaSetting = "redis-wait-replicas"

// replicas counts the replicas that are connected and have reported lately. One that hangs
// stays connected for a minute.
func (in info) replicas() (n int) {
	for name, value := range in {
		if !strings.HasPrefix(name, "slave") {
			continue
		}
		replica := info{}
		for part := range strings.SplitSeq(value, ",") {
			k, v, _ := strings.Cut(part, "=")
			replica[k] = v
		}
		if replica["state"] == "online" && replica.number("lag") < maxLag.Seconds() {
			n++
		}
	}
	return n
}

// maxLag is how old a replica's last report may be. It reports once a second.
const maxLag = 5 * time.Second

// lackOf returns the warning for a master that has so few replicas.
func (l *Ledger) lackOf(replicas int) string {
	switch want := l.opts.WaitReplicas; {
	case want == 0:
		return ""
	case replicas < want:
		return fmt.Sprintf(replicaSetting+" is %d, and only %d are connected: nothing can be confirmed", want, replicas)
	case l.unconfirmed.Load():
		return fmt.Sprintf(replicaSetting+" is %d, and fewer have confirmed the last write within %v", want, l.opts.WaitTimeout)
	}
	return ""
}
