package asynqtasks

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

func field(b []byte, n protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), text)
}

// Fields that are not needed, and those of later versions, are passed over.
func TestDecode(t *testing.T) {
	b := field(nil, fieldType, "mail")
	b = field(b, fieldPayload, "\x00\xff")
	b = field(b, 3, "id")
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldRetry, protowire.VarintType), 25)
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldRetried, protowire.VarintType), 3)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 99, protowire.Fixed64Type), 7)
	b = field(b, fieldHeaders, string(field(field(nil, 1, "Tenant"), 2, "eu")))
	m, err := decode(b)
	if err != nil || m.kind != "mail" || string(m.payload) != "\x00\xff" || m.retry != 25 || m.retried != 3 || m.headers["Tenant"] != "eu" {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, bad := range [][]byte{nil, []byte("{"), b[:len(b)-1], field(nil, 3, "no type"), field(field(nil, 1, "a"), fieldHeaders, "\xff")} {
		if m, err := decode(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, m)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(field(nil, fieldType, "mail"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = decode(b) })
}
