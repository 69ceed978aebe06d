package redisledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// Erase removes every key that begins with opts.Prefix, and no other. It is for tools that keep
// a data set of their own for a while, such as `lapse bench`. Their ledgers must be closed. It
// returns the number of removed keys.
//
// Erase refuses DefaultPrefix, any prefix of it, and any prefix that begins with it, so that no
// call erases the keys of servers. An ACL user needs the commands scan and unlink for it.
func Erase(ctx context.Context, opts Options) (int, error) {
	if strings.HasPrefix(DefaultPrefix, opts.Prefix) || strings.HasPrefix(opts.Prefix, DefaultPrefix) {
		return 0, errors.New("erase: give a prefix other than " + DefaultPrefix + ", which servers use; neither may begin with the other")
	}
	opts, a, err := opts.withDefaults()
	if err != nil {
		return 0, err
	}
	client, err := conn.Connect(a, opts.TLS, 1, conn.IOTimeout)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	var removed atomic.Int64 // the servers of a cluster are asked at the same time
	err = client.EachServer(ctx, func(ctx context.Context, c *redis.Client) error {
		n, err := erase(ctx, c, client, opts.Prefix)
		removed.Add(int64(n))
		return err
	})
	if err != nil {
		err = fmt.Errorf("erasing the keys of %s: %w", opts.Prefix, err)
	}
	return int(removed.Load()), err
}

// erase removes the keys of one server. It compares each key with the prefix before: what a
// pattern matches is up to Redis.
func erase(ctx context.Context, c *redis.Client, all redis.UniversalClient, prefix string) (removed int, err error) {
	pages := c.Scan(ctx, 0, escapeGlob(prefix)+"*", 10_000).Iterator()
	for pages.Next(ctx) {
		key := pages.Val()
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		n, err := all.Unlink(ctx, key).Result()
		if err != nil {
			return removed, err
		}
		removed += int(n)
	}
	return removed, pages.Err()
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// escapeGlob makes a pattern that matches only the text itself.
func escapeGlob(text string) string { return globEscaper.Replace(text) }
