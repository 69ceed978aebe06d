// Tour is what a program does with go-redis: tour.go HOST PORT PASSWORD PROTOCOL.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	ctx = context.Background()
	c   *redis.Client
)

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

// must returns a value without its error.
func must[T any](v T, err error) T {
	if err != nil {
		fail("%v", err)
	}
	return v
}

// check compares a value.
func check[T any](got T, err error) func(want T) {
	return func(want T) {
		if err != nil || !reflect.DeepEqual(got, want) {
			panic(fmt.Sprintf("got %v, %v, want %v", got, err, want))
		}
	}
}

func refused(err error, text string) {
	if err == nil || !strings.Contains(err.Error(), text) {
		panic(fmt.Sprintf("got %v, want %s", err, text))
	}
}

func within(limit time.Duration, yes func() bool) {
	for end := time.Now().Add(limit); !yes(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			panic("still waiting after " + limit.String())
		}
	}
}

func client(password string, protocol int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: net.JoinHostPort(os.Args[1], os.Args[2]), Password: password, ClientName: "tour", Protocol: protocol,
	})
}

func connection() {
	check(c.Ping(ctx).Result())("PONG")
	check(c.ClientGetName(ctx).Result())("tour")
	check(c.Echo(ctx, "hello").Result())("hello")
	if must(c.ClientID(ctx).Result()) <= 0 || !strings.Contains(must(c.Info(ctx).Result()), "redis_version:") {
		fail("no id, or no version")
	}
	if now := must(c.Time(ctx).Result()); time.Since(now).Abs() > 10*time.Second {
		fail("the time is %v", now)
	}
	if n := len(must(c.Command(ctx).Result())); n < 50 {
		fail("%d commands", n)
	}
	wrong := client("wrong", 3)
	defer wrong.Close()
	refused(wrong.Ping(ctx).Err(), "WRONGPASS")
	refused(c.Do(ctx, "NOSUCH").Err(), "unknown command")
}

func keys() {
	check(c.Set(ctx, "k", "v", 100*time.Second).Result())("OK")
	check(c.Get(ctx, "k").Result())("v")
	check(c.TTL(ctx, "k").Result())(100 * time.Second)
	check(c.Expire(ctx, "k", 50*time.Second).Result())(true)
	check(c.ExpireGT(ctx, "k", time.Second).Result())(false)
	if left := must(c.PTTL(ctx, "k").Result()); left <= 49*time.Second || left > 50*time.Second {
		fail("%v are left", left)
	}
	check(c.Persist(ctx, "k").Result())(true)
	check(c.TTL(ctx, "k").Result())(-1)
	at := time.Now().Add(time.Minute).Truncate(time.Second)
	check(c.ExpireAt(ctx, "k", at).Result())(true)
	check(c.ExpireTime(ctx, "k").Result())(time.Duration(at.Unix()) * time.Second)
	check(c.SetNX(ctx, "k", "w", time.Minute).Result())(false)
	check(c.SetXX(ctx, "k", "w", redis.KeepTTL).Result())(true)
	check(c.SetArgs(ctx, "k", "x", redis.SetArgs{TTL: 90 * time.Second, Get: true}).Result())("w")
	check(c.GetSet(ctx, "k", "y").Result())("x")
	check(c.SetEx(ctx, "k2", "z", 70*time.Second).Result())("OK")
	check(c.SetNX(ctx, "k4", "z", 0).Result())(true)
	check(c.GetEx(ctx, "k2", 80*time.Second).Result())("z")
	check(c.GetDel(ctx, "k4").Result())("z")
	check(c.MSet(ctx, "m1", "1", "m2", "2").Result())("OK")
	check(c.MSetNX(ctx, "m1", "3").Result())(false)
	check(c.MGet(ctx, "m1", "missing", "m2").Result())([]any{"1", nil, "2"})
	check(c.Exists(ctx, "k", "k2", "missing").Result())(2)
	check(c.Type(ctx, "k").Result())("string")
	check(c.Append(ctx, "m1", "23").Result())(3)
	check(c.StrLen(ctx, "m1").Result())(3)
	check(c.GetRange(ctx, "m1", 1, -1).Result())("23")
	check(c.SetRange(ctx, "m1", 1, "xy").Result())(3)
	check(c.Rename(ctx, "m1", "m3").Result())("OK")
	check(c.Copy(ctx, "m3", "m4", 0, true).Result())(1)
	check(c.Get(ctx, "m4").Result())("1xy")
	check(c.Del(ctx, "k", "k2", "m2", "m3", "m4", "missing").Result())(5)
	if err := c.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
		fail("of a missing key: %v", err)
	}
	check(c.TTL(ctx, "k").Result())(-2)
	binary := string(func() (all []byte) {
		for i := range 256 {
			all = append(all, byte(i))
		}
		return all
	}())
	check(c.Set(ctx, binary, binary, time.Minute).Result())("OK")
	check(c.Get(ctx, binary).Result())(binary)
	check(c.Unlink(ctx, binary).Result())(1)
}

func numbers() {
	check(c.Incr(ctx, "n").Result())(1)
	check(c.IncrBy(ctx, "n", 9).Result())(10)
	check(c.DecrBy(ctx, "n", 1).Result())(9)
	check(c.IncrByFloat(ctx, "n", 0.5).Result())(9.5)
	refused(c.Incr(ctx, "n").Err(), "not an integer")
	check(c.Del(ctx, "n").Result())(1)
}

func scan() {
	var names []string
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range 250 {
			names = append(names, "scan:"+strconv.Itoa(i))
			p.Set(ctx, names[i], "v", 5*time.Minute)
		}
		return nil
	})
	check(0, err)(0)
	found := map[string]bool{}
	for it := c.Scan(ctx, 0, "scan:*", 17).Iterator(); it.Next(ctx); {
		found[it.Val()] = true
	}
	slices.Sort(names)
	check(slices.Sorted(maps.Keys(found)), nil)(names)
	check(len(must(c.Keys(ctx, "scan:?").Result())), nil)(10)
	check(c.Del(ctx, names...).Result())(250)
}

func transactions() {
	var n *redis.IntCmd
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, "t", "1", time.Minute)
		n = p.Incr(ctx, "t")
		return nil
	})
	check(n.Val(), err)(2)
	add := func(meanwhile string) error {
		return c.Watch(ctx, func(tx *redis.Tx) error {
			was := must(tx.Get(ctx, "t").Int())
			if meanwhile != "" {
				c.Set(ctx, "t", meanwhile, 0)
			}
			_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, "t", was+1, 0)
				return nil
			})
			return err
		}, "t")
	}
	if err := add("5"); !errors.Is(err, redis.TxFailedErr) {
		fail("a watched key has changed: %v", err)
	}
	check(0, add(""))(0)
	check(c.GetDel(ctx, "t").Result())("6")
}

// heard has when an expired event came by which kind of subscription.
var (
	heard    = map[string]time.Time{}
	messages <-chan *redis.Message
)

// read receives for a moment.
func read() (m *redis.Message) {
	select {
	case m = <-messages:
		if strings.HasPrefix(m.Channel, "__keyevent@0__:") {
			heard[m.Pattern+" "+m.Payload] = time.Now()
		}
	case <-time.After(50 * time.Millisecond):
	}
	return m
}

func subscriptions() {
	const expired, pattern = "__keyevent@0__:expired", "__key*__:exp*"
	check(c.ConfigSet(ctx, "notify-keyspace-events", "Ex").Result())("OK")
	p := c.Subscribe(ctx, expired, "chat")
	must(p.Receive(ctx))
	must(p.Receive(ctx))
	check(0, p.PSubscribe(ctx, pattern))(0)
	must(p.Receive(ctx))
	messages = p.Channel()
	due := map[string]time.Time{}
	for i := range 20 {
		key, ttl := fmt.Sprint("e:", i), time.Duration(300+10*i)*time.Millisecond
		due[key] = time.Now().Add(ttl)
		check(c.Set(ctx, key, "v", ttl).Result())("OK")
	}
	within(20*time.Second, func() bool { read(); return len(heard) == 40 })
	latest := time.Duration(0)
	for key, at := range due {
		for _, kind := range []string{"", pattern} {
			late := heard[kind+" "+key].Sub(at)
			if latest = max(latest, late); late < -time.Millisecond || late > 2*time.Second {
				fail("%q came %v late by %q", key, late, kind)
			}
		}
	}
	fmt.Printf("late by at most %v\n", latest)
	check(c.Publish(ctx, "chat", "hello").Result())(1)
	within(5*time.Second, func() bool { m := read(); return m != nil && m.Channel == "chat" && m.Payload == "hello" })
	check(c.PubSubNumSub(ctx, "chat").Result())(map[string]int64{"chat": 1})
}

const stream = "expired:jobs"

func group(id string, block time.Duration) ([]redis.XMessage, error) {
	all, err := c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "workers", Consumer: "w1", Streams: []string{stream, id}, Count: 10, Block: block}).Result()
	if err != nil {
		return nil, err
	}
	return all[0].Messages, nil
}

func streams() {
	check(c.XGroupCreateMkStream(ctx, stream, "workers", "$").Result())("OK")
	refused(c.XGroupCreateMkStream(ctx, stream, "workers", "$").Err(), "BUSYGROUP")
	if _, err := group(">", 20*time.Millisecond); !errors.Is(err, redis.Nil) {
		fail("of an empty stream: %v", err)
	}
	for i := range 10 {
		check(c.Set(ctx, fmt.Sprint("job:", i), fmt.Sprint("value ", i), 50*time.Millisecond).Result())("OK")
	}
	entries := map[string]string{}
	within(20*time.Second, func() bool {
		some, _ := group(">", 2*time.Second)
		for _, m := range some {
			entries[m.ID] = m.Values["key"].(string)
			check(m.Values["value"], nil)(strings.Replace(entries[m.ID], "job:", "value ", 1))
		}
		return len(entries) == 10
	})
	ids := slices.Sorted(maps.Keys(entries))
	check(must(c.XPending(ctx, stream, "workers").Result()).Consumers, nil)(map[string]int64{"w1": 10})
	check(len(must(c.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: stream, Group: "workers", Start: "-", End: "+", Count: 100}).Result())), nil)(10)
	check(c.XAck(ctx, stream, "workers", ids[:8]...).Result())(8)
	check(c.XAck(ctx, stream, "workers", ids[:8]...).Result())(0)
	check(len(must(group("0", -1))), nil)(2)
	claimed, _, err := c.XAutoClaim(ctx, &redis.XAutoClaimArgs{Stream: stream, Group: "workers", Consumer: "w2", Start: "0-0", Count: 10}).Result()
	check(len(claimed), err)(2)
	check(c.XAck(ctx, stream, "workers", ids[8:]...).Result())(2)
	check(must(c.XPending(ctx, stream, "workers").Result()).Count, nil)(0)
	check(must(c.XInfoGroups(ctx, stream).Result())[0].Name, nil)("workers")
	check(len(must(c.XInfoConsumers(ctx, stream, "workers").Result())), nil)(2)
	check(c.Type(ctx, stream).Result())("stream")
}

func restart() {
	c.Set(ctx, "after", "v", 4*time.Second)
	c.Set(ctx, "job:after", "v", 4*time.Second)
	c.Set(ctx, "kept", "v", 10*time.Minute)
	fmt.Println("restart")
	must(bufio.NewReader(os.Stdin).ReadString('\n'))
	within(20*time.Second, func() bool { return c.Get(ctx, "kept").Val() == "v" })
	within(20*time.Second, func() bool {
		read()
		return !heard[" after"].IsZero()
	})
	within(20*time.Second, func() bool {
		some, _ := group(">", time.Second)
		return len(some) == 1 && some[0].Values["key"] == "job:after" && c.XAck(ctx, stream, "workers", some[0].ID).Val() == 1
	})
}

func main() {
	protocol := must(strconv.Atoi(os.Args[4]))
	c = client(os.Args[3], protocol)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"connection", connection}, {"keys", keys}, {"numbers", numbers}, {"scan", scan}, {"transactions", transactions},
		{"subscriptions", subscriptions}, {"streams", streams}, {"restart", restart},
	} {
		step.do()
		fmt.Println("ok", step.name)
	}
}
