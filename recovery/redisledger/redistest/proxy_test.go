package redistest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func through(t *testing.T, p *Proxy, patience time.Duration) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: p.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestSever: a client that is cut off gets no answer, over old connections or new ones, and
// works again when the network heals.
func TestSever(t *testing.T) {
	s := Start(t)
	for name, how := range map[string]Severance{"stall": Stall, "reset": Reset} {
		t.Run(name, func(t *testing.T) {
			p := NewProxy(t, s.Addr)
			old, late := through(t, p, 100*time.Millisecond), through(t, p, 100*time.Millisecond)
			if err := old.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			p.Sever(how)
			for _, c := range []*redis.Client{old, late} {
				if c.Ping(t.Context()).Err() == nil {
					t.Error("the server has answered")
				}
			}
			p.Heal()
			for _, c := range []*redis.Client{old, late} {
				answers(t, c)
			}
		})
	}
}

// TestStalled: requests that were sent while the network stalled arrive later, although their
// sender has gone.
func TestStalled(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr)
	c := through(t, p, 100*time.Millisecond)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.Sever(Stall)
	if c.Incr(t.Context(), "n").Err() == nil {
		t.Error("the server has answered")
	}
	_ = c.Close()
	if got := s.Do("exists", "n"); got != int64(0) {
		t.Fatalf("the server has %v", got)
	}
	p.Heal()
	s.Wait("it has arrived", func(ctx context.Context, c *redis.Client) bool { return c.Get(ctx, "n").Val() == "1" })
}

// TestStallEndsInReset: the one may follow the other.
func TestStallEndsInReset(t *testing.T) {
	s := Start(t)
	p := NewProxy(t, s.Addr)
	c := through(t, p, time.Minute)
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.Sever(Stall)
	failed := make(chan error)
	go func() { failed <- c.Incr(context.Background(), "n").Err() }()
	p.Sever(Reset)
	if <-failed == nil {
		t.Error("the server has answered")
	}
	p.Heal()
	answers(t, c)
}

// TestBehind: a client that asks a cluster or a sentinel by a proxy gets only addresses of
// proxies, and is cut off when all of them are severed.
func TestBehind(t *testing.T) {
	t.Run("cluster", func(t *testing.T) {
		cluster := StartCluster(t)
		_, proxies := cluster.Behind()
		testBehind(t, proxies, redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{proxies[0].Addr}, Protocol: 2, DisableIdentity: true,
			DialTimeout: time.Second, ReadTimeout: time.Second, MaxRedirects: 3, MaxRetries: -1, DialerRetries: 1,
		}))
	})
	t.Run("sentinel", func(t *testing.T) {
		sentinels := StartSentinel(t)
		_, proxies := sentinels.Behind()
		testBehind(t, proxies, redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: MasterName, SentinelAddrs: []string{proxies[0].Addr}, Protocol: 2, DisableIdentity: true,
			DialTimeout: time.Second, ReadTimeout: time.Second, MaxRetries: -1, DialerRetries: 1,
		}))
		proxies[1].mu.Lock()
		defer proxies[1].mu.Unlock()
		if len(proxies[1].links) == 0 {
			t.Error("the master was not met by its proxy")
		}
	})
}

func testBehind(t *testing.T, proxies []*Proxy, c redis.UniversalClient) {
	t.Cleanup(func() { _ = c.Close() })
	answered := func() (err error) {
		for _, key := range []string{"a", "b", "c", "d", "e", "f"} { // slots of all masters
			err = errors.Join(err, c.Set(context.Background(), key, "1", 0).Err())
		}
		return err
	}
	if err := answered(); err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		p.Sever(Reset)
	}
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if c.Get(context.Background(), key).Err() == nil {
			t.Errorf("key %s was read past the proxies", key)
		}
	}
	for _, p := range proxies {
		p.Heal()
	}
	soon(t, answered)
}

func answers(t *testing.T, c *redis.Client) {
	t.Helper()
	soon(t, func() error { return c.Ping(context.Background()).Err() })
}

func soon(t *testing.T, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for done() != nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("no answer after the network has healed")
		}
	}
}
