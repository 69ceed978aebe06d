package diskledger

import (
	"bytes"
	"encoding/hex"
	"math"
	"slices"
	"testing"
)

// TestLayoutBytes pins the layout, version 1, for ever.
func TestLayoutBytes(t *testing.T) {
	for _, c := range []struct{ what, want string }{
		{hex.EncodeToString(appendPending(nil, 1, "a")), "70" + "8000000000000001" + "61"},
		{hex.EncodeToString(appendPending(nil, -1, "a")), "70" + "7fffffffffffffff" + "61"},
		{hex.EncodeToString(appendDead(nil, "a")), "64" + "61"},
		{hex.EncodeToString(appendWhere(nil, 1, "t")), "8000000000000001" + "74"},
		{hex.EncodeToString(appendDeadRecord(nil, "t", 1, "a")), "78" + "74" + "0001" + "8000000000000001" + "61"},
		{hex.EncodeToString(appendDeadRecord(nil, "t\x00", 1, "a")), "78" + "74" + "00ff" + "0001" + "8000000000000001" + "61"},
		{hex.EncodeToString(appendSetting(nil, "n")), "73" + "6e"},
		{hex.EncodeToString(encodeSetting(2, []byte("v"))), "0000000000000002" + "01" + "76"},
		{hex.EncodeToString(encodeSetting(2, nil)), "0000000000000002" + "00"},
	} {
		if c.what != c.want {
			t.Errorf("the layout has changed: %s, want %s", c.what, c.want)
		}
	}
}

func TestKeysSortByTime(t *testing.T) {
	times := []int64{math.MinInt64, -1000, -1, 0, 1, 255, 256, 1_795_000_000_000, math.MaxInt64}
	var keys [][]byte
	for _, at := range times {
		keys = append(keys, appendPending(nil, at, ""), appendPending(nil, at, "a"), appendPending(nil, at, "b"))
	}
	if !slices.IsSortedFunc(keys, bytes.Compare) {
		t.Error("the keys of pending records do not sort by time, then id")
	}
	keys = nil
	for _, label := range []string{"", "\x00", "\x00\x01", "a", "a\x00", "a\x00b", "a\x01", "aa", "b"} {
		for _, at := range times {
			keys = append(keys, appendDeadRecord(nil, label, at, "id"))
		}
	}
	if !slices.IsSortedFunc(keys, bytes.Compare) {
		t.Error("the keys of graves do not sort by label, then time")
	}
}

func FuzzPending(f *testing.F) {
	f.Add(appendPending(nil, 5, "task"))
	f.Add([]byte{kindPending})
	f.Fuzz(func(t *testing.T, key []byte) {
		at, id, err := decodePending(key)
		if err == nil && !bytes.Equal(appendPending(nil, at, id), key) {
			t.Errorf("%x decodes to %d, %x, which encodes differently", key, at, id)
		}
	})
}

func FuzzDeadRecord(f *testing.F) {
	f.Add(appendDeadRecord(nil, "topic", 5, "task"))
	f.Add(appendDeadRecord(nil, "a\x00b\x00\x01", -5, "\x00\x01"))
	f.Add([]byte("x\x00\x01"))
	f.Fuzz(func(t *testing.T, key []byte) {
		label, at, id, err := decodeDeadRecord(key)
		if err == nil && !bytes.Equal(appendDeadRecord(nil, label, at, id), key) {
			t.Errorf("%x decodes to %q, %d, %x, which encodes differently", key, label, at, id)
		}
	})
}

func FuzzDeadRecordRoundTrip(f *testing.F) {
	f.Add("topic", int64(5), "task")
	f.Add("\x00\xff\x00\x01", int64(-1), "\x00")
	f.Fuzz(func(t *testing.T, label string, at int64, id string) {
		gotLabel, gotAt, gotID, err := decodeDeadRecord(appendDeadRecord(nil, label, at, id))
		if err != nil || gotLabel != label || gotAt != at || string(gotID) != id {
			t.Errorf("%q, %d, %q comes back as %q, %d, %q: %v", label, at, id, gotLabel, gotAt, gotID, err)
		}
	})
}

func FuzzValues(f *testing.F) {
	f.Add(encodeSetting(3, []byte("value")))
	f.Add(encodeSetting(3, nil))
	f.Add(appendWhere(nil, 7, "topic"))
	f.Fuzz(func(t *testing.T, v []byte) {
		if revision, value, err := decodeSetting(v); err == nil && !bytes.Equal(encodeSetting(revision, value), v) {
			t.Errorf("%x decodes to %d, %x, which encodes differently", v, revision, value)
		}
		if at, label, err := decodeWhere(v); err == nil && !bytes.Equal(appendWhere(nil, at, label), v) {
			t.Errorf("%x decodes to %d, %q, which encodes differently", v, at, label)
		}
	})
}
