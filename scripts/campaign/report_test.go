package campaign

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
)

// bench returns the judge.
func (f *fleet) bench() crash.Bench {
	return crash.Bench{Deliver: f.deliver, Patience: 2*f.failoverAfter + 2*time.Second, FailoverAfter: f.failoverAfter}
}

// report judges, and writes the result for people. All records stay in the directory of the seed;
// after a run without faults those that are not needed are removed.
func (f *fleet) report(o options, seed uint64, rounds int, took time.Duration, left string) {
	v := f.bench().Judge(f.history)
	f.panics()
	f.judgeStock()
	f.each(func(w *feature) {
		if w.judge != nil {
			w.judge(f)
		}
	})
	broken := f.breaches
	for _, b := range f.breaches {
		v.Faults = append(v.Faults, b.text)
		kind, _, _ := strings.Cut(b.text, ":")
		v.Broken[crash.Promise(kind)]++
	}
	v.Excused = append(v.Excused, f.excused...)
	for _, x := range v.Violations {
		broken = append(broken, breach{x.Text, f.matrix.featuresOf(x.Task), x.Start, x.End})
	}
	f.matrix.count(f.happened, notice(f.failoverAfter), broken)
	file, err := os.Create(filepath.Join(f.dir, "verdict.txt"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()

	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d nodes, %d rounds of faults in %s, on_outage=%s, sentinel=%v\n",
		seed, o.nodes, rounds, took.Round(time.Second), map[bool]string{true: "deliver", false: "pause"}[f.deliver], o.sentinel(seed))
	fmt.Fprintf(&b, "calls %d, of them 503 %d, without an answer %d; stalls %d; faults %s\n", f.calls.Load(), f.busy.Load(), f.silent.Load(), f.stalls.Load(), count(f.history.Faults()))
	fmt.Fprintf(&b, "tasks %d, accepted %d, spooled %d, cancelled %d, moved %d, deliveries %d, again %v\n",
		v.Tasks, v.Accepted, f.spooled.Load(), v.Cancelled, v.Moved, v.Deliveries, v.Again)
	fmt.Fprintf(&b, "excused by a fault %d; broken promises %d: %v\n", len(v.Excused), len(v.Faults), v.Broken)
	f.mu.Lock()
	wrongs := slices.Clone(f.wrongs)
	f.mu.Unlock()
	kinds := map[string]int{}
	for _, w := range wrongs {
		kinds[w.kind]++
	}
	fmt.Fprintf(&b, "histories checked for linearizability %d, of them undecided %d\n", f.checked, f.undecided)
	fmt.Fprintf(&b, "other faults %d: %v", len(wrongs), kinds)
	if left != "" {
		fmt.Fprintf(&b, "\nleft at the end: %s", left)
	}
	fmt.Fprintln(file, b.String())

	for _, text := range v.Faults[:min(10, len(v.Faults))] {
		fmt.Fprintf(&b, "\n  %s", text)
	}
	for _, w := range firstOfEach(wrongs) {
		fmt.Fprintf(&b, "\n  %s: %s", w.kind, w.text)
	}
	f.t.Log(b.String())
	if len(v.Faults)+len(wrongs) == 0 && left == "" {
		return
	}
	for _, w := range wrongs {
		fmt.Fprintf(file, "%s: %s\n", w.kind, w.text)
	}
	for _, fault := range f.history.Faults() {
		fmt.Fprintln(file, fault)
	}
	for _, text := range v.Faults {
		var n int
		if _, err := fmt.Sscanf(text, "task %d:", &n); err == nil {
			fmt.Fprintf(file, "\n%s\n%v", text, f.history.Task(n))
		}
	}
	fmt.Fprintln(file, "\nWhat the documentation allows:")
	for i := range faults {
		fmt.Fprintf(file, "%s, %s: %s\n", faults[i].name, faults[i].does, cmp.Or(faults[i].excuses, "nothing"))
	}
	for _, w := range f.features {
		fmt.Fprintf(file, "%s, %s: %s\n", w.name, w.does, cmp.Or(w.excuses, "nothing"))
	}
	for _, text := range v.Excused {
		fmt.Fprintf(file, "excused: %s\n", text)
	}
	f.reportOwed(file)
	f.t.Errorf("seed %d has broken promises: see %s", seed, f.dir)
}

// firstOfEach returns the first few of each kind.
func firstOfEach(all []wrong) (some []wrong) {
	seen := map[string]int{}
	for _, w := range all {
		if seen[w.kind]++; seen[w.kind] <= 3 {
			some = append(some, w)
		}
	}
	return some
}

// count returns how many faults there were of each kind.
func count(all []crash.Fault) string {
	n := map[crash.Trouble]int{}
	for _, f := range all {
		n[f.Trouble]++
	}
	var parts []string
	for _, trouble := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s %d", trouble, n[trouble]))
	}
	return strings.Join(parts, ", ")
}

// panics looks for panics in the output of the nodes.
func (f *fleet) panics() {
	for _, n := range f.nodes {
		file, err := os.Open(n.log.Name())
		if err != nil {
			f.t.Fatal(err)
		}
		lines := bufio.NewScanner(file)
		lines.Buffer(nil, 1<<20)
		for at := 1; lines.Scan(); at++ {
			if line := lines.Text(); strings.Contains(line, "panic") || strings.Contains(line, "DATA RACE") {
				f.wrong("panic", "%s:%d: %.300s", filepath.Base(n.log.Name()), at, line)
			}
		}
		_ = file.Close()
	}
}
