package recovery_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery"
)

func pending(at int64) recovery.Spot {
	return recovery.Spot{Place: recovery.Pending, At: at}
}

func creation(id string, at int64) recovery.Change {
	return recovery.Change{ID: []byte(id), To: pending(at), Data: []byte("record of " + id)}
}

func ids(b *recovery.Batch) string {
	var s []string
	for i := range b.Len() {
		s = append(s, string(b.At(i).ID))
	}
	return strings.Join(s, " ")
}

func TestBatchCopies(t *testing.T) {
	var b recovery.Batch
	c := creation("a", 1)
	b.Add(c)
	c.ID[0], c.Data[0] = 'z', 'z'
	b.Add(recovery.Change{ID: []byte("b"), From: pending(2)})
	b.Add(recovery.Change{ID: []byte("c"), To: pending(3), Data: []byte{}})
	if got := b.At(0); string(got.ID) != "a" || !bytes.Equal(got.Data, []byte("record of a")) {
		t.Errorf("At(0) = %s, %s", got.ID, got.Data)
	}
	if got := b.At(1); got.Data != nil || got.From != pending(2) {
		t.Errorf("At(1) = %+v, want no data", got)
	}
	if got := b.At(2); got.Data == nil || len(got.Data) != 0 {
		t.Errorf("At(2) = %+v, want empty data", got)
	}
	if id := b.At(0).ID; cap(id) != len(id) {
		t.Error("appending to an id would overwrite the batch")
	}
}

func TestBatchRetain(t *testing.T) {
	var b recovery.Batch
	bytesOf := func(id string) int { c := creation(id, 0); return len(c.ID) + len(c.Data) }
	for i := range 6 {
		b.Add(creation(fmt.Sprint(i), 0))
	}
	var asked []int
	b.Retain(func(i int) bool { asked = append(asked, i); return i%2 == 1 })
	if !slices.Equal(asked, []int{0, 1, 2, 3, 4, 5}) || ids(&b) != "1 3 5" || b.Bytes() != 3*bytesOf("1") {
		t.Errorf("asked %v, kept %s with %d bytes", asked, ids(&b), b.Bytes())
	}
	b.Reset()
	if b.Len() != 0 || b.Bytes() != 0 {
		t.Errorf("after Reset: %d changes, %d bytes", b.Len(), b.Bytes())
	}
}
