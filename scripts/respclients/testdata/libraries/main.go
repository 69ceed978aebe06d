// Libraries is what libraries in Go do that need scripts or conditions: HOST PORT PASSWORD.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redis/redis_rate/v10"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func check(holds bool, what string, more ...any) {
	if !holds {
		fmt.Fprintln(os.Stderr, append([]any{what}, more...)...)
		os.Exit(1)
	}
}

func main() {
	c := redis.NewClient(&redis.Options{Addr: net.JoinHostPort(os.Args[1], os.Args[2]), Password: os.Args[3]})
	defer c.Close()
	for _, library := range []struct {
		name string
		try  func(c *redis.Client)
	}{{"redsync", tryRedsync}, {"bsm/redislock", tryRedislock}, {"redis_rate", tryRate}, {"go-redis Script", tryScript}} {
		library.try(c)
		fmt.Println("ok", library.name)
	}
}

func tryRedsync(c *redis.Client) {
	rs := redsync.New(goredis.NewPool(c))
	one := rs.NewMutex("redsync", redsync.WithExpiry(10*time.Second), redsync.WithTries(1))
	two := rs.NewMutex("redsync", redsync.WithExpiry(10*time.Second), redsync.WithTries(1))
	check(one.Lock() == nil, "Lock")
	check(two.Lock() != nil, "two have the lock")
	extended, err := one.Extend()
	check(extended && err == nil, "Extend", err)
	released, err := one.Unlock()
	check(released && err == nil, "Unlock", err)
	check(two.Lock() == nil, "Lock after Unlock")
	released, err = one.Unlock()
	check(!released && err != nil, "the lock of another is released")
	valid, err := two.Valid()
	check(valid && err == nil, "Valid", err)
	released, err = two.Unlock()
	check(released && err == nil, "Unlock", err)
}

func tryRedislock(c *redis.Client) {
	locker := redislock.New(c)
	lock, err := locker.Obtain(ctx, "redislock", 10*time.Second, nil)
	check(err == nil, "Obtain", err)
	_, err = locker.Obtain(ctx, "redislock", time.Second, nil)
	check(errors.Is(err, redislock.ErrNotObtained), "two have the lock", err)
	ttl, err := lock.TTL(ctx)
	check(err == nil && ttl > 5*time.Second, "TTL", ttl, err)
	check(lock.Refresh(ctx, time.Minute, nil) == nil, "Refresh")
	check(lock.Release(ctx) == nil, "Release")
	check(errors.Is(lock.Release(ctx), redislock.ErrLockNotHeld), "released twice")
}

func tryRate(c *redis.Client) {
	limiter := redis_rate.NewLimiter(c)
	for i := range 4 {
		got, err := limiter.Allow(ctx, "rate", redis_rate.PerHour(3))
		check(err == nil, "Allow", err)
		check((got.Allowed == 1) == (i < 3), "Allowed", i, got.Allowed, got.RetryAfter)
	}
	got, err := limiter.AllowAtMost(ctx, "rate2", redis_rate.PerHour(3), 10)
	check(err == nil && got.Allowed == 3, "AllowAtMost", err)
	check(limiter.Reset(ctx, "rate") == nil, "Reset")
}

func tryScript(c *redis.Client) {
	s := redis.NewScript("return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]).ok .. #KEYS")
	got, err := s.Run(ctx, c, []string{"script"}, "v", 60_000).Result()
	check(err == nil && got == "OK1", "Run", got, err)
	got, err = redis.NewScript("return redis.call('get', KEYS[1])").RunRO(ctx, c, []string{"script"}).Result()
	check(err == nil && got == "v", "RunRO", got, err)
}
