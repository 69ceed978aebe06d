package conn

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// MaxWaitTimeout is the longest Replication.Timeout: it leaves room for the answer within
// IOTimeout.
const MaxWaitTimeout = 900 * time.Millisecond

// MaxReplicas bounds Replication.Want; no master has nearly as many.
const MaxReplicas = 64

// Replication confirms writes: with Want > 0, a write counts as unanswered until so many replicas
// have it.
type Replication struct {
	Client      *Client
	Want        int
	Timeout     time.Duration // for which Redis waits for them each time
	unconfirmed atomic.Bool   // too few replicas had the last write
}

// Send sends the command of a script that writes to a key. While too few replicas have what it
// has written, it returns an error although it was written: the caller repeats it until they do.
func (r *Replication) Send(ctx context.Context, key string, s Script, command []any) (Verdict, error) {
	if r.Want == 0 {
		return Judge(s.Send(ctx, r.Client, command))
	}
	w := witness{Replication: r, key: key}
	v, err := Judge(s.Send(ctx, &w, command))
	if err != nil || v.Code == 0 {
		return v, err // a refused batch needs no replica
	}
	err = w.err
	if lack := int64(r.Want) - w.replicas; err == nil && lack > 0 {
		err = fmt.Errorf("written, but only %d of %d replicas have it after %v", w.replicas, r.Want, r.Timeout)
	}
	r.unconfirmed.Store(err != nil)
	return v, err
}

// A witness sends a command to the server that has a key, and then asks on the same connection
// how many replicas have received the writes of that connection.
type witness struct {
	*Replication
	key      string
	replicas int64 // that have it
	err      error // of WAIT
}

// Process implements Processor.
func (w *witness) Process(ctx context.Context, cmd redis.Cmder) error {
	server, err := w.Client.ServerOf(ctx, w.key)
	if err != nil {
		cmd.SetErr(err)
		return err
	}
	err = w.exchange(ctx, server, cmd, false)
	cluster, ok := w.Client.UniversalClient.(*redis.ClusterClient)
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
	return w.exchange(ctx, target, cmd, asking)
}

// exchange sends a command and WAIT in one pipeline.
func (w *witness) exchange(ctx context.Context, server *redis.Client, cmd redis.Cmder, asking bool) error {
	p := server.Pipeline()
	if asking {
		p.Do(ctx, "asking")
	}
	_ = p.Process(ctx, cmd)
	wait := p.Do(ctx, "wait", w.Want, w.Timeout.Milliseconds())
	_, _ = p.Exec(ctx) // each command has its own error
	w.replicas, w.err = wait.Int64()
	return cmd.Err()
}

// ReplicaSetting begins warnings about replicas.
const ReplicaSetting = "redis-wait-replicas"

// Lack returns the warning for a master that has so few replicas.
func (r *Replication) Lack(replicas int) string {
	switch want := r.Want; {
	case want == 0:
		return ""
	case replicas < want:
		return fmt.Sprintf(ReplicaSetting+" is %d, and only %d are connected: nothing can be confirmed", want, replicas)
	case r.unconfirmed.Load():
		return fmt.Sprintf(ReplicaSetting+" is %d, and fewer have confirmed the last write within %v", want, r.Timeout)
	}
	return ""
}
