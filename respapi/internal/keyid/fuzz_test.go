package keyid

import (
	"bytes"
	"testing"

	"github.com/lapsehq/lapse/tasks/task"
)

// Every key has a valid id that means it alone, and is found again.
func FuzzEncode(f *testing.F) {
	long := bytes.Repeat([]byte{'a'}, task.MaxIDBytes)
	for _, key := range [][]byte{nil, []byte("order:42"), []byte("a b"), []byte(":x"), []byte("k@.x"), []byte("k@-x"), []byte("@"), []byte("@20"), {0, 255}, long, append(long, 'b'), bytes.Repeat([]byte{0}, MaxKey)} {
		f.Add(key, []byte("other"))
		f.Add(key, append(bytes.Clone(key), 'b'))
	}
	// A byte that needs no escape; the hash of another key.
	f.Add([]byte("ka"), []byte("k@61"))
	f.Add(append(bytes.Clone(long), 'c'), append([]byte(hashed), bytes.Repeat([]byte{'0'}, 64)...))
	f.Fuzz(func(t *testing.T, key, other []byte) {
		if len(key) > MaxKey || len(other) > MaxKey {
			t.Skip()
		}
		id, escaped := Encode(key)
		if len(id) > task.MaxIDBytes || !task.ValidName(id) {
			t.Errorf("%q: the id %q is not valid", key, id)
		}
		if IsID(key) != (id == string(key)) {
			t.Errorf("%q is its own id: %v; its id is %q", key, IsID(key), id)
		}
		if back, ok := Decode(id, escaped); !ok || back != string(key) {
			t.Errorf("%q has the id %q (%q), which means %q, %v", key, id, escaped, back, ok)
		}
		if otherID, _ := Encode(other); otherID == id && !bytes.Equal(key, other) {
			t.Errorf("%q and %q both have the id %q", key, other, id)
		}
		// What is no id of a key is not taken for one: another id never means this key.
		if back, ok := Decode(string(other), escaped); ok && task.ValidName(string(other)) && back == string(key) && string(other) != id {
			t.Errorf("%q means %q, whose id is %q", other, back, id)
		}
	})
}
