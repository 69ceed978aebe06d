package diskledger

import (
	"fmt"
	"testing"
)

// Deleted settings leave one key, and revisions grow nevertheless.
func TestDeletedSettingsAreForgotten(t *testing.T) {
	l, err := Open(t.TempDir(), Options{Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for i := range 50 {
		name := fmt.Sprintf("other/%d", i)
		revision, err := l.PutSetting(t.Context(), name, 0, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.PutSetting(t.Context(), name, revision, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.EachSetting(t.Context(), "", func(name string, _ []byte, _ int64) { t.Errorf("there is %s", name) }); err != nil {
		t.Fatal(err)
	}
	p := page{next: []byte{kindSetting}}
	e, err := l.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = p.read(e, e.db, []byte{kindSetting + 1})
	e.users.Done()
	if err != nil || len(p.items) != 1 || !p.last {
		t.Errorf("%d keys are left, %v", len(p.items), err)
	}
	if revision, err := l.PutSetting(t.Context(), "other/1", 0, []byte("x")); err != nil || revision <= 1 {
		t.Errorf("revision %d follows 1, %v", revision, err)
	}
}
