package redisledger

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// settingsRig is a ledger that keeps few changes of settings.
type settingsRig struct {
	*testing.T
	l      *Ledger
	client redis.UniversalClient
	topics string
}

const fewChanges = 20

func forSettings(t *testing.T, test func(r settingsRig)) {
	conform(t, func(t *testing.T, fresh func() *lives) {
		v := fresh()
		v.opts.keptChanges = fewChanges
		l := v.open(t)
		adopt(t, l)
		test(settingsRig{t, l, l.client, l.keys.Topics()})
	})
}

func (r settingsRig) put(name string, value string) (revision int64) {
	r.Helper()
	_, before, err := r.l.Setting(r.Context(), name)
	var v []byte
	if value != "" {
		v = []byte(value)
	}
	if err == nil {
		revision, err = r.l.PutSetting(r.Context(), name, before, v)
	}
	if err != nil {
		r.Fatalf("PutSetting(%s): %v", name, err)
	}
	return revision
}

func (r settingsRig) version() recovery.SettingsVersion {
	r.Helper()
	v, err := r.l.SettingsVersion(r.Context())
	if err != nil {
		r.Fatalf("SettingsVersion: %v", err)
	}
	return v
}

func (r settingsRig) wantChanged(since recovery.SettingsVersion, fault error, want map[string]string) {
	r.Helper()
	got := map[string]string{}
	_, err := r.l.ChangedSettings(r.Context(), since, "", func(name string, value []byte, _ int64) { got[name] = string(value) })
	if !errors.Is(err, fault) || fault == nil && !maps.Equal(got, want) {
		r.Errorf("since %v %v have changed, %v; want %v, %v", since, got, err, want, fault)
	}
}

// rewind resets the settings to an earlier state.
func (r settingsRig) rewind() (back func()) {
	r.Helper()
	const backup = "{%s}-backup-%d"
	all := []string{r.topics, r.l.keys.Changes()}
	for i, key := range all {
		if err := r.client.Copy(r.Context(), key, fmt.Sprintf(backup, r.topics, i), 0, true).Err(); err != nil {
			r.Fatal(err)
		}
	}
	return func() {
		for i, key := range all {
			if err := r.client.Rename(r.Context(), fmt.Sprintf(backup, r.topics, i), key).Err(); err != nil {
				r.Fatal(err)
			}
		}
	}
}

// The space for deleted settings is bounded, and revisions grow nevertheless.
func TestDeletedSettingsAreForgotten(t *testing.T) {
	t.Parallel()
	forSettings(t, func(r settingsRig) {
		const n = 200
		for i := range n {
			name := fmt.Sprintf("topic/%d", i)
			r.put(name, "1")
			r.put(name, "2")
			r.put(name, "")
		}
		if fields := r.client.HLen(r.Context(), r.topics).Val(); fields > fewChanges+3 {
			r.Errorf("%d settings that were deleted leave %d fields", n, fields)
		}
		if changes := r.client.ZCard(r.Context(), r.l.keys.Changes()).Val(); changes != fewChanges {
			r.Errorf("%d changes are kept, want %d", changes, fewChanges)
		}
		if revision := r.put("topic/0", "3"); revision <= 3 {
			r.Errorf("after a deletion, revision %d follows 2", revision)
		}
	})
}

var netOutput = regexp.MustCompile(`(?m)^total_net_output_bytes:(\d+)`)

// One change among many settings is read, and not the others.
func TestOneChangeIsReadAlone(t *testing.T) {
	server := redistest.Start(t)
	l := newLives(server.URL()).open(t)
	l.member.FailoverAfter = 1 << 40
	adopt(t, l)
	fillSettings(t, l.client, l.keys, 5000, 300)
	r := settingsRig{t, l, l.client, l.keys.Topics()}
	r.put("topic/000001", "1")
	seen := r.version()
	r.put("topic/000002", "2")
	output := func() int {
		m := netOutput.FindStringSubmatch(server.Do("info", "stats").(string))
		n, _ := strconv.Atoi(m[1])
		return n
	}
	before := output()
	commands := executed(server, func() { r.wantChanged(seen, nil, map[string]string{"topic/000002": "2"}) })
	if commands > 10 { // four, and heartbeats
		t.Errorf("one change takes %d commands", commands)
	}
	if bytes := output() - before; bytes > 50_000 { // most of it is INFO
		t.Errorf("one change takes %d bytes", bytes)
	}
}

// Changes that Redis has lost are noticed, also when as many others have come since.
func TestLostChangesOfSettings(t *testing.T) {
	t.Parallel()
	forSettings(t, func(r settingsRig) {
		for peers := range 5 {
			r.put("topic/a", fmt.Sprint(peers))
			back := r.rewind()
			r.put("topic/a", "lost")
			r.put("topic/b", "lost")
			seen := r.version()
			back()
			for i := range peers {
				r.put("topic/c", fmt.Sprint(peers, i))
			}
			r.wantChanged(seen, recovery.ErrRewound, nil)
			r.put("topic/b", "")
		}
	})
}

// A set of changes that is ahead of the settings, which alone were lost, is not used.
func TestSettingsAreLostAlone(t *testing.T) {
	t.Parallel()
	forSettings(t, func(r settingsRig) {
		seen := recovery.SettingsVersion{}
		for i := range 12 {
			r.put("topic/a", fmt.Sprint(i))
			if i == 1 {
				seen = r.version()
			}
		}
		r.client.HSet(r.Context(), r.topics, "!v", "2", "!n", fmt.Sprintf("%016d %s", 2, seen.Last))
		r.wantChanged(seen, nil, map[string]string{})
		r.put("topic/b", "1")
		r.wantChanged(seen, nil, map[string]string{"topic/b": "1"})
		r.put("topic/b", "2")
		r.wantChanged(seen, nil, map[string]string{"topic/b": "2"})
	})
}

// A node that has not read for long reads everything.
func TestChangesThatAreNotKept(t *testing.T) {
	t.Parallel()
	forSettings(t, func(r settingsRig) {
		r.put("topic/a", "1")
		seen := r.version()
		for i := range fewChanges - 1 {
			r.put("topic/b", fmt.Sprint(i))
		}
		r.wantChanged(seen, nil, map[string]string{"topic/b": fmt.Sprint(fewChanges - 2)})
		r.put("topic/b", "last")
		r.wantChanged(seen, recovery.ErrNoHistory, nil)
	})
}
