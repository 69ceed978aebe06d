package ledgertest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// testSettings: compare-and-set with revisions that only grow.
func testSettings(f *fixture) {
	s, ok := f.ledger.(recovery.Settings)
	if !ok {
		f.Skip("this ledger keeps no settings")
	}
	put := func(name string, ifRevision int64, value []byte) int64 {
		f.Helper()
		revision, err := s.PutSetting(f.ctx(), name, ifRevision, value)
		if err != nil {
			f.Fatalf("PutSetting(%s, %d): %v", name, ifRevision, err)
		}
		return revision
	}
	want := func(name, value string, revision int64) {
		f.Helper()
		got, has, err := s.Setting(f.ctx(), name)
		if err != nil || string(got) != value || has != revision || (revision == 0) != (got == nil) {
			f.Fatalf("Setting(%s) = %q, %d, %v, want %q, %d", name, got, has, err, value, revision)
		}
	}
	refused := func(name string, ifRevision int64, value []byte) {
		f.Helper()
		if _, err := s.PutSetting(f.ctx(), name, ifRevision, value); !errors.Is(err, recovery.ErrConflict) {
			f.Fatalf("PutSetting(%s, %d): %v, want ErrConflict", name, ifRevision, err)
		}
	}
	want("topic/a", "", 0)
	refused("topic/a", 7, []byte("x"))
	first := put("topic/a", 0, []byte("one"))
	want("topic/a", "one", first)
	refused("topic/a", 0, []byte("two"))
	if again := put("topic/a", 0, []byte("one")); again != first {
		f.Errorf("writing what is there gives revision %d, want %d", again, first)
	}
	second := put("topic/a", first, []byte("two"))
	if second <= first {
		f.Errorf("revision %d follows %d", second, first)
	}
	refused("topic/a", first, nil)
	put("topic/a", second, nil)
	want("topic/a", "", 0)
	put("topic/a", second, nil) // deleted already
	third := put("topic/a", 0, []byte("three"))
	if third <= second {
		f.Errorf("after a deletion, revision %d follows %d", third, second)
	}
	put("topic/b", 0, []byte{})
	put("topic/c", put("topic/c", 0, []byte("gone")), nil)
	put("topicality", 0, []byte("another prefix"))

	f.restart()
	s = f.ledger.(recovery.Settings)
	want("topic/a", "three", third)
	var names []string
	if err := s.EachSetting(f.ctx(), "topic/", func(name string, value []byte, revision int64) {
		if revision == 0 || value == nil {
			f.Errorf("EachSetting: %s has revision %d", name, revision)
		}
		names = append(names, name)
	}); err != nil {
		f.Fatalf("EachSetting: %v", err)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"topic/a", "topic/b"}) {
		f.Errorf("EachSetting(topic/) visits %v", names)
	}

	shared, ok := f.ledger.(recovery.SharedSettings)
	if !ok {
		return
	}
	version := func() int64 {
		f.Helper()
		v, err := shared.SettingsVersion(f.ctx())
		if err != nil {
			f.Fatalf("SettingsVersion: %v", err)
		}
		return v
	}
	before := version()
	if again := version(); again != before {
		f.Errorf("SettingsVersion %d follows %d, and nothing has changed", again, before)
	}
	fourth := put("topic/a", third, []byte("four"))
	changed := version()
	put("topic/a", fourth, nil)
	if deleted := version(); changed == before || deleted == changed || deleted == before {
		f.Errorf("SettingsVersion %d, %d after a change, %d after a deletion", before, changed, deleted)
	}
}

// testSettingsConcurrently: of those who compare with the same revision, one wins.
func testSettingsConcurrently(f *fixture) {
	s, ok := f.ledger.(recovery.Settings)
	if !ok {
		f.Skip("this ledger keeps no settings")
	}
	const writers, rounds = 4, 10
	wins := make(chan int64, writers*rounds)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := 0; n < rounds; {
				_, revision, err := s.Setting(f.ctx(), "counter")
				if err != nil {
					f.Errorf("Setting: %v", err)
					return
				}
				next, err := s.PutSetting(f.ctx(), "counter", revision, fmt.Appendf(nil, "%d/%d", w, n))
				switch {
				case errors.Is(err, recovery.ErrConflict):
					continue
				case err != nil:
					f.Errorf("PutSetting: %v", err)
					return
				}
				wins <- next
				n++
			}
		})
	}
	wg.Wait()
	close(wins)
	seen := map[int64]bool{}
	for revision := range wins {
		if seen[revision] {
			f.Errorf("two writers won revision %d", revision)
		}
		seen[revision] = true
	}
}
