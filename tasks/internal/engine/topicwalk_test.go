package engine_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// fillTopics makes so many topics, named t00000 and so on, that have no tasks.
func fillTopics(r *rig.Rig, n int) {
	rig.Mutex(r.Engine()).Lock()
	defer rig.Mutex(r.Engine()).Unlock()
	for i := range n {
		if _, err := r.Engine().TopicLocked(fmt.Sprintf("t%05d", i), false); err != nil {
			r.T.Fatal(err)
		}
	}
}

func TestEachTopicInPieces(t *testing.T) {
	const topics = 5*engine.AtOnce + 7
	r := rig.New(t, Config{})
	fillTopics(r, topics)
	seen, inOne := make(map[string]int), 0
	r.Engine().EachTopicThen(func(v *engine.Topic) {
		seen[v.Name]++
		if inOne++; inOne > engine.AtOnce {
			t.Fatalf("%d topics are visited in one critical section", inOne)
		}
	}, func() {
		inOne = 0
		rig.Mutex(r.Engine()).Lock() // for ever if it were held
		defer rig.Mutex(r.Engine()).Unlock()
	})
	if len(seen) != topics {
		t.Errorf("%d topics were visited, want %d", len(seen), topics)
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s was visited %d times", name, n)
		}
	}
}

// A loop over all topics under the lock keeps every task of the node waiting: EachTopic is the
// way to visit them.
func TestNoLoopOverAllTopics(t *testing.T) {
	var names []string
	for _, pattern := range []string{"../../*.go", "*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(found), err)
		}
		names = append(names, found...)
	}
	files := token.NewFileSet()
	all := func(e ast.Expr) bool {
		if part, ok := e.(*ast.SliceExpr); ok {
			e = part.X
		}
		s, ok := e.(*ast.SelectorExpr)
		return ok && (s.Sel.Name == "ByName" || s.Sel.Name == "ByNumber")
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if loop, ok := n.(*ast.RangeStmt); ok && all(loop.X) && !boundedLoops[name] {
				t.Errorf("%s: a loop over all topics; use EachTopic", files.Position(loop.Pos()))
			}
			return true
		})
	}
}

// boundedLoops are files with a loop that looks like one over all topics and is not.
var boundedLoops = map[string]bool{
	"topic.go": true, // EachTopic itself; evict ends after a hundred
}

func TestStatsOfManyTopics(t *testing.T) {
	r := rig.New(t, Config{})
	fillTopics(r, MaxStatsTopics)
	for i := range 3 {
		r.Must(Request{Topic: fmt.Sprintf("zz-busy-%d", i), Delay: time.Hour})
	}
	r.MustSetTopic("zzz-set", TopicSettings{Paused: true})
	st := r.Stats()
	if len(st.Topics) != MaxStatsTopics || st.Beyond != 4 || st.Total.Scheduled != 3 || st.Others.Scheduled != 0 {
		t.Fatalf("%d topics, %d beyond, %d scheduled, %d of them by others; want %d, 4, 3, 0",
			len(st.Topics), st.Beyond, st.Total.Scheduled, st.Others.Scheduled, MaxStatsTopics)
	}
	last := st.Topics[MaxStatsTopics-4:]
	for i, want := range []string{"zz-busy-0", "zz-busy-1", "zz-busy-2", "zzz-set"} {
		if last[i].Name != want {
			t.Errorf("shown is %s, want %s", last[i].Name, want)
		}
	}
	for i := 1; i < len(st.Topics); i++ {
		if st.Topics[i-1].Name >= st.Topics[i].Name {
			t.Fatalf("%s stands before %s", st.Topics[i-1].Name, st.Topics[i].Name)
		}
	}
	if all := r.Admin().Topics(); len(all) != MaxStatsTopics+4 || all[0].Name != "t00000" || all[len(all)-1].Name != "zzz-set" {
		t.Errorf("%d topics from %s to %s", len(all), all[0].Name, all[len(all)-1].Name)
	}
}

func TestListTopics(t *testing.T) {
	const topics = 2*MaxTopicPage + 5
	r := rig.New(t, Config{})
	fillTopics(r, topics)
	for _, limit := range []int{0, 1000, 999, 300} {
		n, pages := 0, 0
		for cursor := ""; ; {
			page, err := r.Admin().ListTopics(TopicQuery{Limit: limit, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			for _, topic := range page.Topics {
				if want := fmt.Sprintf("t%05d", n); topic.Name != want {
					t.Fatalf("with limit %d comes %s, want %s", limit, topic.Name, want)
				}
				n++
			}
			pages++
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		size := limit
		if size == 0 {
			size = MaxTopicPage
		}
		if n != topics || pages != (topics+size-1)/size {
			t.Errorf("with limit %d there were %d topics on %d pages", limit, n, pages)
		}
	}
	for _, q := range []TopicQuery{{Limit: -1}, {Limit: MaxTopicPage + 1}, {Cursor: "a b"}} {
		if _, err := r.Admin().ListTopics(q); err == nil {
			t.Errorf("%+v is no fault", q)
		}
	}
}

func TestPageOfLargeTopicsEndsEarly(t *testing.T) {
	r := rig.New(t, Config{})
	fillTopics(r, 100)
	rig.Mutex(r.Engine()).Lock()
	for i := range 100 {
		r.Engine().TopicTable.ByName[fmt.Sprintf("t%05d", i)].Settings.Delivery = make([]byte, 500<<10)
	}
	rig.Mutex(r.Engine()).Unlock()
	page, err := r.Admin().ListTopics(TopicQuery{})
	if err != nil || len(page.Topics) != 9 || page.NextCursor != "t00008" {
		t.Fatalf("%d topics, then %q: %v", len(page.Topics), page.NextCursor, err)
	}
	page, err = r.Admin().ListTopics(TopicQuery{Cursor: page.NextCursor})
	if err != nil || page.Topics[0].Name != "t00009" {
		t.Errorf("then %s: %v", page.Topics[0].Name, err)
	}
}

func TestFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f cluster.Flight[int]
		runs := 0
		compute := func() int {
			runs++
			time.Sleep(time.Second)
			return runs
		}
		began := time.Now()
		var all sync.WaitGroup
		ask := func(want int) {
			all.Go(func() {
				if got := f.Do(compute); got != want {
					t.Errorf("got the result of computation %d, want %d", got, want)
				}
			})
		}
		ask(1)
		time.Sleep(500 * time.Millisecond)
		for range 50 {
			ask(2) // the one that runs began before they asked
		}
		all.Wait()
		if took := time.Since(began); runs != 2 || took != 2*time.Second {
			t.Errorf("%d computations in %s", runs, took)
		}
	})
}
