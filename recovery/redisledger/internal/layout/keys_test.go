package layout

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// noon is a time like those that records have.
const noon = 1_795_000_000_000

// Data stored by one version must be readable by all later ones: these values never change.
func TestLayout(t *testing.T) {
	k := Keys{Prefix: "lapse:"}
	s := k.Shard("10.0.0.1:7480", 3)
	got := []string{
		k.Nodes(), k.Topics(), k.Changes(), k.Dataset(), k.Heartbeat("10.0.0.1:7480"),
		s.Pending(), s.Tasks(), s.Dead(), s.DeadIndex(),
		k.BusOfAll(), k.BusOf("a"), Keys{Prefix: "x:", DB: 3}.BusOfAll(), Keys{Prefix: "x:", DB: 3}.BusOf("a"),
		Token{"10.0.0.1:7480", "00ff", 12}.String(),
		fmt.Sprintf("%q", AppendPending(nil, noon, []byte("data"))),
		fmt.Sprintf("%q", AppendDead(nil, noon, "topic", []byte("data"))),
		fmt.Sprintf("%q", AppendDeadRef(nil, "topic", noon, "id-1")),
		fmt.Sprint(ShardOf([]byte("order-42"), 16), ShardOf([]byte("a"), 16), ShardOf([]byte("a"), 12)),
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
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the layout has changed (-want +got):\n%s", diff)
	}
}

func TestRecords(t *testing.T) {
	for _, at := range []int64{math.MinInt64, -1, 0, 1, noon, math.MaxInt64} {
		for _, data := range []string{"", "x", "\x00\xff"} {
			gotAt, gotData, err := DecodePending(string(AppendPending(nil, at, []byte(data))))
			if err != nil || gotAt != at || gotData != data {
				t.Errorf("pending %d %q becomes %d %q: %v", at, data, gotAt, gotData, err)
			}
			for _, label := range []string{"", "topic"} {
				gotAt, gotLabel, gotData, err := DecodeDead(string(AppendDead(nil, at, label, []byte(data))))
				if err != nil || gotAt != at || gotLabel != label || gotData != data {
					t.Errorf("dead %d %q %q becomes %d %q %q: %v", at, label, data, gotAt, gotLabel, gotData, err)
				}
			}
		}
	}
	for _, bad := range []string{"", "short", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x09x"} {
		if _, _, _, err := DecodeDead(bad); err == nil {
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
				m := string(AppendDeadRef(nil, label, at, id))
				gotLabel, gotAt, gotID, err := DecodeDeadRef(m)
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
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for _, node := range []string{"127.0.0.1:7480", "[::1]:7480", "shop-1"} {
		want := Token{node, "00ff", 3}
		if got, err := ParseToken(want.String()); err != nil || got != want || ValidNode(node) != nil {
			t.Errorf("%v becomes %v: %v", want, got, err)
		}
	}
	for _, node := range []string{"", "-", "a b", "a{b", "a}", "a/b", "a#b", "ä"} {
		if ValidNode(node) == nil {
			t.Errorf("the node %q is accepted", node)
		}
	}
}

func TestShardsAreEven(t *testing.T) {
	counts := make([]int, 16)
	for n := range 160_000 {
		counts[ShardOf([]byte(fmt.Sprintf("01000000000000000000000%09x", n)), 16)]++
	}
	if low, high := slices.Min(counts), slices.Max(counts); low < 9_000 || high > 11_000 {
		t.Errorf("the shards get %d to %d of 160,000 ids", low, high)
	}
}
