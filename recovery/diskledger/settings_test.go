package diskledger

import (
	"fmt"
	"testing"
)

// Deleted settings leave one key, also those that an earlier version has deleted, and revisions
// grow nevertheless.
func TestDeletedSettingsAreForgotten(t *testing.T) {
	l, err := Open(t.TempDir(), Options{Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := l.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const n = 1500 // more than a page
	if err := e.write(func(d *draft) {
		for i := range n {
			d.put(appendSetting(nil, fmt.Sprintf("topic/%d", i)), encodeSetting(int64(2+i%6), nil))
		}
	}); err != nil {
		t.Fatal(err)
	}
	e.users.Done()
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
	if e, err = l.use(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = p.read(e, e.db, []byte{kindSetting + 1})
	e.users.Done()
	if err != nil || len(p.items) != 1 || !p.last {
		t.Errorf("%d keys are left, %v", len(p.items), err)
	}
	if revision, err := l.PutSetting(t.Context(), "topic/1", 0, []byte("x")); err != nil || revision <= 7 {
		t.Errorf("revision %d follows 7, %v", revision, err)
	}
}
