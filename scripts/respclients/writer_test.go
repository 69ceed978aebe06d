//go:build fault

package respclients

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// writeGo is the writer of go-redis. It does what those in testdata do.
func (j *job) writeGo(count int, addresses []string) {
	const batchSize = 20
	var clients []*redis.Client
	for _, a := range addresses {
		c := j.dial("shop", a)
		defer c.Close()
		clients = append(clients, c)
	}
	at, ctx := 0, j.t.Context()
	all := func(commands ...[]any) []*redis.Cmd {
		p := clients[at].Pipeline()
		answers := make([]*redis.Cmd, len(commands))
		for i, c := range commands {
			answers[i] = p.Do(ctx, c...)
		}
		if _, err := p.Exec(ctx); err != nil {
			for _, a := range answers {
				if text := errorOf(a); text != "" && strings.HasPrefix(text, "ERR ") {
					j.t.Errorf("%v: %s", a.Args(), text)
				}
			}
			at = (at + 1) % len(clients)
			time.Sleep(100 * time.Millisecond)
		}
		return answers
	}
	note := func(words ...any) {
		var b bytes.Buffer
		fmt.Fprintln(&b, words...)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.noteSet(strings.Fields(b.String()))
	}
	for first := 0; first < count && ctx.Err() == nil; first += batchSize {
		keys := make([]string, 0, batchSize)
		ttl, from, to := map[string]int64{}, map[string]int64{}, map[string]int64{}
		repeated := map[string]bool{}
		for i := first; i < min(first+batchSize, count); i++ {
			key := fmt.Sprintf("%s:go:%d", []string{"order", "order", "job"}[i%3], i)
			keys, ttl[key] = append(keys, key), 8000+rand.Int64N(12_000)
		}
		for left := keys; len(left) > 0 && ctx.Err() == nil; {
			var commands [][]any
			for _, key := range left {
				if from[key] == 0 {
					from[key] = time.Now().UnixMilli() + ttl[key]
				}
				commands = append(commands, []any{"SET", key, "value of " + key, "PX", ttl[key]})
			}
			var again []string
			for i, a := range all(commands...) {
				if to[left[i]] = time.Now().UnixMilli() + ttl[left[i]]; a.Err() != nil {
					again = append(again, left[i])
					repeated[left[i]] = true
				}
			}
			left = again
		}
		for i, key := range keys {
			if (first+i)%30 == 1 && !repeated[key] {
				for all([]any{"DEL", key})[0].Err() != nil && ctx.Err() == nil {
				}
				note("del", key)
				continue
			}
			note("set", key, from[key], to[key])
		}
	}
}

// errorOf returns the text of an error that the server has answered.
func errorOf(c *redis.Cmd) string {
	var answered redis.Error
	if errors.As(c.Err(), &answered) {
		return answered.Error()
	}
	return ""
}
