package redisledger

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Data stored by one version must be readable by all later ones: these values never change.
func TestLayout(t *testing.T) {
	k := keys{prefix: "lapse:"}
	s := k.shard("10.0.0.1:7480", 3)
	got := []string{
		k.nodes(), k.topics(), k.changes(), k.dataset(), k.heartbeat("10.0.0.1:7480"),
		s.pending(), s.tasks(), s.dead(), s.deadIndex(),
		k.busOfAll(), k.busOf("a"), keys{"x:", 3}.busOfAll(), keys{"x:", 3}.busOf("a"),
		token{"10.0.0.1:7480", "00ff", 12}.String(),
		fmt.Sprintf("%q", appendPending(nil, noon, []byte("data"))),
		fmt.Sprintf("%q", appendDead(nil, noon, "topic", []byte("data"))),
		fmt.Sprintf("%q", appendDeadRef(nil, "topic", noon, "id-1")),
		fmt.Sprint(shardOf([]byte("order-42"), 16), shardOf([]byte("a"), 16), shardOf([]byte("a"), 12)),
		(&entry{
			Incarnation: "00ff", Generation: 2, Released: true, Counts: []int{8, 16},
			process: process{Host: "h", Machine: "m", Boot: "b", Space: "s", PID: 7, Started: 9},
		}).encode(),
	}
	want := []string{
		"lapse:nodes", "lapse:topics", "lapse:changes:{lapse:topics}", "lapse:dataset", "lapse:heartbeat:{lapse:nodes}:10.0.0.1:7480",
		"lapse:{10.0.0.1:7480/3}:pending", "lapse:{10.0.0.1:7480/3}:tasks",
		"lapse:{10.0.0.1:7480/3}:dead", "lapse:{10.0.0.1:7480/3}:deadindex",
		"lapse:bus", "lapse:bus:a", "x:bus/3", "x:bus/3:a",
		"10.0.0.1:7480#00ff#12",
		`"\x00\x00\x01\xa1\xeeV^\x00data"`,
		`"\x00\x00\x01\xa1\xeeV^\x00\x00\x05topicdata"`,
		`"topic\x00800001a1ee565e00id-1"`,
		"14 3 3", // zlib.crc32 of the id, modulo the number
		`{"incarnation":"00ff","generation":2,"released":true,"counts":[8,16],"host":"h","machine":"m","boot":"b","space":"s","pid":7,"started":9}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the layout has changed (-want +got):\n%s", diff)
	}
}

func TestRecords(t *testing.T) {
	for _, at := range []int64{math.MinInt64, -1, 0, 1, noon, math.MaxInt64} {
		for _, data := range []string{"", "x", "\x00\xff"} {
			gotAt, gotData, err := decodePending(string(appendPending(nil, at, []byte(data))))
			if err != nil || gotAt != at || gotData != data {
				t.Errorf("pending %d %q becomes %d %q: %v", at, data, gotAt, gotData, err)
			}
			for _, label := range []string{"", "topic"} {
				gotAt, gotLabel, gotData, err := decodeDead(string(appendDead(nil, at, label, []byte(data))))
				if err != nil || gotAt != at || gotLabel != label || gotData != data {
					t.Errorf("dead %d %q %q becomes %d %q %q: %v", at, label, data, gotAt, gotLabel, gotData, err)
				}
			}
		}
	}
	for _, bad := range []string{"", "short", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09x"} {
		if _, _, _, err := decodeDead(bad); err == nil {
			t.Errorf("a dead record %q is accepted", bad)
		}
	}
}

// The index lists by label, then time, then id.
func TestDeadRefsAreOrdered(t *testing.T) {
	var members []string
	for _, label := range []string{"order", "order.paid", "orders"} {
		for _, at := range []int64{math.MinInt64, -5, 0, 9, 10, noon, math.MaxInt64} {
			for _, id := range []string{"a", "ab", "b"} {
				m := string(appendDeadRef(nil, label, at, id))
				gotLabel, gotAt, gotID, err := decodeDeadRef(m)
				if err != nil || gotLabel != label || gotAt != at || gotID != id {
					t.Errorf("%s %d %s becomes %s %d %s: %v", label, at, id, gotLabel, gotAt, gotID, err)
				}
				members = append(members, m)
			}
		}
	}
	if !slices.IsSorted(members) {
		t.Error("the members are not in order")
	}
}

func TestTokens(t *testing.T) {
	for _, bad := range []string{"a", "a#b", "a#b#c", "a#b#1#2", "a#b#99999999999999999999"} {
		if _, err := parseToken(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for _, node := range []string{"127.0.0.1:7480", "[::1]:7480", "shop-1"} {
		want := token{node, "00ff", 3}
		if got, err := parseToken(want.String()); err != nil || got != want || validNode(node) != nil {
			t.Errorf("%v becomes %v: %v", want, got, err)
		}
	}
	for _, node := range []string{"", "-", "a b", "a{b", "a}", "a/b", "a#b", "ä"} {
		if validNode(node) == nil {
			t.Errorf("the node %q is accepted", node)
		}
	}
}

func TestShardsAreEven(t *testing.T) {
	counts := make([]int, 16)
	for n := range 160_000 {
		counts[shardOf([]byte(benchID(n)), 16)]++
	}
	if low, high := slices.Min(counts), slices.Max(counts); low < 9_000 || high > 11_000 {
		t.Errorf("the shards get %d to %d of 160,000 ids", low, high)
	}
}
