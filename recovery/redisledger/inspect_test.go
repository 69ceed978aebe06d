package redisledger

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/internal/checkup"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// The commands that an inspection tries are those that the documentation grants.
func TestNeededCallsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, acl, _ := strings.Cut(string(text), "ACL SETUSER lapse on")
	acl, _, _ = strings.Cut(acl, "```")
	var granted []string
	for word := range strings.FieldsSeq(acl) {
		// Each connection begins with HELLO.
		if name, ok := strings.CutPrefix(word, "+"); ok && name != "hello" {
			granted = append(granted, name)
		}
	}
	called := []string{"subscribe", "unsubscribe"}
	for _, call := range neededCalls("k", "c") {
		called = append(called, fmt.Sprint(call[0]))
	}
	slices.Sort(granted)
	slices.Sort(called)
	if !slices.Equal(granted, slices.Compact(called)) {
		t.Errorf("granted %v, called %v", granted, called)
	}
}

// A Redis Cluster can be inspected, each of its servers, and keeps nothing.
func TestInspectCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	found, err := Inspect(t.Context(), Options{URL: cluster.URL(), Node: "a"})
	if err != nil {
		t.Fatal(err)
	}
	evictions := 0
	for _, f := range found {
		if f.Verdict == checkup.Fail {
			t.Errorf("%+v", f)
		}
		if strings.HasPrefix(f.Subject, "redis eviction of ") {
			evictions++
		}
	}
	if evictions != 3 {
		t.Errorf("%d servers were looked at: %v", evictions, found)
	}
	if f := found[len(found)-1]; f.Subject != "redis commands" || f.Verdict != checkup.OK {
		t.Errorf("got %+v", f)
	}
}

// A proxy that lacks commands, and options that are wrong, are told.
func TestInspectRefusals(t *testing.T) {
	server := redistest.Start(t)
	for _, refused := range []string{"EVALSHA", "SUBSCRIBE", "HSCAN"} {
		found, err := Inspect(t.Context(), Options{URL: redistest.Refusing(t, server.Addr, redistest.Unknown, refused), Node: "a"})
		if err != nil {
			t.Fatal(err)
		}
		f := found[len(found)-1]
		if f.Verdict != checkup.Fail || !strings.Contains(f.Found, strings.ToLower(refused)) || !strings.Contains(f.Do, "no proxy") {
			t.Errorf("without %s: %+v", refused, f)
		}
	}
	if _, err := Inspect(t.Context(), Options{URL: "http://x", Node: "a"}); err == nil {
		t.Error("a wrong URL is no error")
	}
}

// Each judgement of what a server says of itself, and what to do about it.
func TestInspectJudgements(t *testing.T) {
	const gib = 1 << 30
	number := func(n int) string { return fmt.Sprint(n) }
	for name, c := range map[string]struct {
		look      func(i *inspection)
		want      checkup.Verdict
		found, do string
	}{
		"old version": {func(i *inspection) { i.version([]conn.Info{{"redis_version": "7.2.0"}, {"redis_version": "6.0.9"}}) }, checkup.Fail, "6.0.9", "upgrade"},
		"full":        {func(i *inspection) { i.memory(conn.Info{"maxmemory": number(gib), "used_memory": number(gib)}, "") }, checkup.Fail, "1024 of 1024 MiB", "raise maxmemory"},
		"nearly full": {func(i *inspection) {
			i.memory(conn.Info{"maxmemory": number(gib), "used_memory": number(gib * 4 / 5)}, "")
		}, checkup.Warn, "819 of", "raise maxmemory"},
		"too large": {func(i *inspection) {
			i.memory(conn.Info{"maxmemory": number(gib), "total_system_memory": number(gib)}, "")
		}, checkup.Warn, "machine with 1024 MiB", "half"},
		"eviction":         {func(i *inspection) { i.eviction(conn.Info{"maxmemory_policy": "allkeys-lru", "maxmemory": "1"}, "") }, checkup.Fail, "allkeys-lru", "noeviction"},
		"loading":          {func(i *inspection) { i.persistence(conn.Info{"loading": "1"}, "") }, checkup.Warn, "reads its files", "wait"},
		"no file":          {func(i *inspection) { i.persistence(conn.Info{"aof_enabled": "0", "config save": ""}, "") }, checkup.Warn, "loses all tasks", "appendonly"},
		"snapshots":        {func(i *inspection) { i.persistence(conn.Info{"aof_enabled": "0", "config save": "60 1"}, "") }, checkup.Warn, "minutes before", "appendonly"},
		"file unwritable":  {func(i *inspection) { i.persistence(conn.Info{"aof_last_write_status": "err"}, "") }, checkup.Fail, "could not write", "disk"},
		"no sync":          {func(i *inspection) { i.persistence(conn.Info{"config appendfsync": "no"}, "") }, checkup.Warn, "30 s", "everysec"},
		"sync each second": {func(i *inspection) { i.persistence(conn.Info{"config appendfsync": "everysec"}, "") }, checkup.OK, "1 to 2 s", ""},
		"no answer":        {func(i *inspection) { i.persistence(conn.Info{"aof_enabled": "1"}, "") }, checkup.OK, "appendfsync", ""},
	} {
		i := &inspection{}
		c.look(i)
		if len(i.findings) != 1 {
			t.Errorf("%s: %+v", name, i.findings)
			continue
		}
		if f := i.findings[0]; f.Verdict != c.want || !strings.Contains(f.Found, c.found) || !strings.Contains(f.Do, c.do) || (f.Do == "") != (c.do == "") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// A Redis that refuses writes until an operator acts is not fit. What to do is told.
func TestInspectOfIll(t *testing.T) {
	t.Parallel()
	full := redistest.Start(t, "appendonly yes", "appendfsync no")
	waiting := redistest.Start(t, "min-replicas-to-write 1")
	uncovered := redistest.StartCluster(t)
	for _, master := range uncovered.Masters { // the owner of the slot is the first
		master.Do("cluster", "delslots", 0)
	}
	for _, master := range uncovered.Masters {
		master.Wait("the cluster is down", func(ctx context.Context, c *redis.Client) bool {
			text, err := c.ClusterInfo(ctx).Result()
			return err == nil && strings.Contains(text, "cluster_state:fail")
		})
	}
	for _, c := range []struct{ url, subject, found, do string }{
		{full.URL(), "redis persistence", "appendfsync is no", "everysec"},
		{waiting.URL(), "redis commands", "NOREPLICAS", "min-replicas-to-write"},
		{uncovered.URL(), "redis commands", "CLUSTERDOWN", "give each slot a master"},
		{"redis+cluster://" + full.Addr, "redis connection", "cluster support disabled", "write redis://"},
		{full.URL() + "/99", "redis connection", "out of range", "name a database"},
	} {
		found, err := Inspect(t.Context(), Options{URL: c.url, Node: "a"})
		if err != nil {
			t.Fatal(err)
		}
		n := slices.IndexFunc(found, func(f checkup.Finding) bool { return f.Subject == c.subject && strings.Contains(f.Found, c.found) })
		if n < 0 || !strings.Contains(found[n].Do, c.do) || c.subject != "redis persistence" && found[n].Verdict != checkup.Fail {
			t.Errorf("%s: %+v", c.url, found)
		}
	}
}
