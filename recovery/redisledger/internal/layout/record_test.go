package layout

import "testing"

// FuzzRecord checks that what is read of Redis is what was written there, or refused.
func FuzzRecord(f *testing.F) {
	f.Add("")
	f.Add("n#1#7")
	f.Add("-#x#-1")
	f.Add(string(AppendPending(nil, -1, []byte("data"))))
	f.Add(string(AppendDead(nil, 1<<62, "topic", []byte("data"))))
	f.Add(string(AppendDeadRef(nil, "topic", -5, "id")))
	f.Add("topic\x00+000000000000001id")
	f.Fuzz(func(t *testing.T, value string) {
		if e, err := DecodeEntry(value); err == nil && len(value) == EntryLen && string(AppendEntry(nil, e)) != value && value != "\x00\x00\x00\x00\x00\x00\x00\x00" {
			t.Errorf("%q is the entry %v", value, e)
		}
		if at, data, err := DecodePending(value); err == nil && string(AppendPending(nil, at, []byte(data))) != value {
			t.Errorf("%q is a pending record of %d, %q", value, at, data)
		}
		if at, label, data, err := DecodeDead(value); err == nil {
			again, label2, data2, err := DecodeDead(string(AppendDead(nil, at, label, []byte(data))))
			if err != nil || again != at || label2 != label || data2 != data {
				t.Errorf("%q is a dead record of %d, %q, %q: %v", value, at, label, data, err)
			}
		}
		if label, at, id, err := DecodeDeadRef(value); err == nil {
			label2, again, id2, err := DecodeDeadRef(string(AppendDeadRef(nil, label, at, id)))
			if err != nil || again != at || label2 != label || id2 != id {
				t.Errorf("%q is a member of %q, %d, %q: %v", value, label, at, id, err)
			}
		}
		if token, err := ParseToken(value); err == nil && value != "" {
			if again, err := ParseToken(token.String()); err != nil || again != token {
				t.Errorf("%q is the token %v: %v", value, token, err)
			}
		}
	})
}
