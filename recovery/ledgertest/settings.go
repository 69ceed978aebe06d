package ledgertest

import (
	"errors"
	"fmt"
	"maps"
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
	version := func() recovery.SettingsVersion {
		f.Helper()
		v, err := shared.SettingsVersion(f.ctx())
		if err != nil {
			f.Fatalf("SettingsVersion: %v", err)
		}
		return v
	}
	before := version()
	if again := version(); again != before {
		f.Errorf("SettingsVersion %v follows %v, and nothing has changed", again, before)
	}
	fourth := put("topic/a", third, []byte("four"))
	changed := version()
	put("topic/a", fourth, nil)
	if deleted := version(); changed == before || deleted == changed || deleted == before {
		f.Errorf("SettingsVersion %v, %v after a change, %v after a deletion", before, changed, deleted)
	}
}

// testDeletedSettings: what is left of deleted ones is removed, and revisions still grow.
func testDeletedSettings(f *fixture) {
	s, ok := f.ledger.(recovery.Settings)
	if !ok {
		f.Skip("this ledger keeps no settings")
	}
	const many = 40
	name := func(i int) string { return fmt.Sprintf("topic/%d", i) }
	put := func(name string, ifRevision int64, value []byte) int64 {
		f.Helper()
		revision, err := s.PutSetting(f.ctx(), name, ifRevision, value)
		if err != nil {
			f.Fatalf("PutSetting(%s, %d): %v", name, ifRevision, err)
		}
		return revision
	}
	last := map[string]int64{}
	for round := range 3 {
		for i := range many {
			var revision int64
			for change := range 1 + (i+round)%3 {
				revision = put(name(i), revision, fmt.Appendf(nil, "%d/%d", round, change))
				if revision <= last[name(i)] {
					f.Fatalf("%s: revision %d follows %d", name(i), revision, last[name(i)])
				}
				last[name(i)] = revision
			}
			put(name(i), revision, nil)
		}
		f.restart()
		s = f.ledger.(recovery.Settings)
		if err := s.EachSetting(f.ctx(), "", func(name string, _ []byte, revision int64) {
			f.Errorf("%s was deleted, and has revision %d", name, revision)
		}); err != nil {
			f.Fatalf("EachSetting: %v", err)
		}
	}
}

// testChangedSettings: settings that have changed since a version are visited, and no others.
func testChangedSettings(f *fixture) {
	s, ok := f.ledger.(recovery.SharedSettings)
	if !ok {
		f.Skip("no other process changes the settings of this ledger")
	}
	put := func(name string, ifRevision int64, value string) int64 {
		f.Helper()
		var v []byte
		if value != "" {
			v = []byte(value)
		}
		revision, err := s.PutSetting(f.ctx(), name, ifRevision, v)
		if err != nil {
			f.Fatalf("PutSetting(%s, %d): %v", name, ifRevision, err)
		}
		return revision
	}
	var seen recovery.SettingsVersion
	want := func(changed map[string]string) {
		f.Helper()
		got := map[string]string{}
		until, err := s.ChangedSettings(f.ctx(), seen, "topic/", func(name string, value []byte, revision int64) {
			if revision == 0 {
				f.Errorf("%s has revision 0", name)
			}
			got[name] = string(value)
		})
		if err != nil || !maps.Equal(got, changed) {
			f.Errorf("since %v %v have changed, %v; want %v", seen, got, err, changed)
		}
		if now, err := s.SettingsVersion(f.ctx()); err != nil || now != until {
			f.Errorf("what has changed is told until %v, and the version is %v, %v", until, now, err)
		}
		seen = until
	}
	a := put("topic/a", 0, "1")
	b := put("topic/b", 0, "1")
	seen, _ = s.SettingsVersion(f.ctx())
	want(nil)
	a = put("topic/a", a, "2")
	want(map[string]string{"topic/a": "2"})
	a = put("topic/a", a, "3")
	put("other", 0, "1")
	put("topic/b", b, "")
	put("topic/c", 0, "1")
	want(map[string]string{"topic/a": "3", "topic/b": "", "topic/c": "1"})
	put("topic/a", a, "3") // is there
	want(nil)
	put("topic/b", 0, "2")
	f.restart()
	s = f.ledger.(recovery.SharedSettings)
	want(map[string]string{"topic/b": "2"})
	for i := range 1200 {
		put(fmt.Sprint("topic/", i%10), 0, "1")
		put(fmt.Sprint("topic/", i%10), revisionOf(f, s, fmt.Sprint("topic/", i%10)), "")
	}
	all := map[string]string{}
	for i := range 10 {
		all[fmt.Sprint("topic/", i)] = ""
	}
	want(all)
	seen.Changes++
	if _, err := s.ChangedSettings(f.ctx(), seen, "", nil); !errors.Is(err, recovery.ErrRewound) {
		f.Errorf("since a version that is not there: %v, want ErrRewound", err)
	}
}

func revisionOf(f *fixture, s recovery.Settings, name string) int64 {
	f.Helper()
	_, revision, err := s.Setting(f.ctx(), name)
	if err != nil {
		f.Fatalf("Setting(%s): %v", name, err)
	}
	return revision
}

// testSettingsConcurrently: of callers that compare with the same revision, one succeeds.
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
