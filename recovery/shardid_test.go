package recovery

import (
	"testing"

	"github.com/google/uuid"
)

func TestShardIDOf(t *testing.T) {
	seen := make(map[string]bool)
	for _, h := range []ShardID{NewShardID(1, 0), NewShardID(1, MaxIDShard), NewShardID(MaxNodeNumber, 0), NewShardID(MaxNodeNumber, MaxIDShard), NewShardID(0x5a5a, 0x155)} {
		for range 1000 {
			id := h.NewID()
			if got, ok := ShardIDOf(id); !ok || got != h {
				t.Fatalf("HomeOf(%s) = %v, %t, want %v", id, got, ok, h)
			}
			if seen[id] {
				t.Fatalf("%s was made twice", id)
			}
			seen[id] = true
			u := uuid.MustParse(id)
			if u.Version() != 7 || u.Variant() != uuid.RFC4122 {
				t.Fatalf("%s is no UUIDv7", id)
			}
		}
	}
	if h := NewShardID(7, 9); h.Node() != 7 || h.Shard() != 9 {
		t.Errorf("parts of a shard id: %d, %d, want 7, 9", h.Node(), h.Shard())
	}
}

func TestShardIDOfOthers(t *testing.T) {
	id := NewShardID(3, 5).NewID()
	for _, other := range []string{
		"", "order-42", id[1:], id + "0", "{" + id[1:35] + "}", "00000000-0000-7000-8000-000000000000",
		id[:14] + "4" + id[15:], id[:35] + "G",
	} {
		if h, ok := ShardIDOf(other); ok {
			t.Errorf("HomeOf(%q) = %v", other, h)
		}
	}
	taken := 0
	for range 100_000 {
		if _, ok := ShardIDOf(uuid.Must(uuid.NewV7()).String()); ok {
			taken++
		}
	}
	if taken > 100 { // 24 are expected
		t.Errorf("%d of 100,000 foreign ids are taken for one's own", taken)
	}
}
