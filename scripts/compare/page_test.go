package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/cli/bench"
)

// measured is an entrant that reaches the figures that it is given.
func measured(name string, lapse bool, figures ...float64) entrant {
	round := 0
	return entrant{name, lapse, "", func(context.Context, bench.Load) (bench.Result, error) {
		if round == len(figures) {
			return bench.Result{}, errors.New("worn\nout|")
		}
		v := figures[round]
		round++
		return bench.Result{Tasks: 1, TasksPerSecond: v, Lateness: &bench.Distribution{Count: 1, P50: v / 2, P99: v, Max: 2 * v}}, nil
	}}
}

func sample(t *testing.T) *comparison {
	t.Helper()
	speeds := row{key: "a", title: "speed", entrants: []entrant{
		measured("Lapse", true, 300, 1000, 500), measured("peer", false, 100, 1000, 100), measured("worn out", false, 5, 6),
		{name: "absent", needs: "no-such-program-anywhere"},
	}, ratios: []ratio{{of: "Lapse", to: "peer", bar: 3}, {of: "Lapse", to: "worn out", bar: 1000}, {of: "Lapse", to: "absent", bar: 1}}}
	lates := row{key: "b", title: "lateness", lateness: true, entrants: []entrant{measured("Lapse", true, 4, 5, 6), measured("peer", false, 1, 1, 1)},
		ratios: []ratio{{of: "Lapse", to: "peer", bar: 3, most: true}}}
	c := &comparison{rounds: 3, command: "make", versions: []string{"Lapse 1"}, machine: bench.ThisMachine()}
	for _, r := range []row{speeds, lates} {
		c.rankings = append(c.rankings, r.run(t.Context(), 3, io.Discard))
	}
	return c
}

func TestPage(t *testing.T) {
	page := sample(t).into("before\n" + begin + "old\n" + end + "after\n")
	if !strings.HasPrefix(page, "before\n"+begin) || !strings.HasSuffix(page, "\n"+end+"after\n") || strings.Contains(page, "old\n") {
		t.Error("the rest of the page has changed")
	}
	for _, want := range []string{
		"| Lapse | 500 | 250 | 500 | 1000 | 0 |",  // the median
		"Lapse to peer: **3.00** (at least 3.00)", // the median of 3, 1 and 5
		"Lapse to worn out: **113.3** (at least 1000.0: **missed**)",
		`| worn out *(failed in round 3, and no more was measured: worn out\|)* | 6 |`,
		"| absent | *no-such-program-anywhere is not installed* |",
		"Lapse to absent: not measured",
		"p99 lateness, Lapse to peer: **5.00** (at most 3.00: **missed**)",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
}

func TestChart(t *testing.T) {
	var b bytes.Buffer
	if err := sample(t).chart(&b); err != nil {
		t.Fatal(err)
	}
	texts := 0
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		e, ok := token.(xml.StartElement)
		if ok && e.Name.Local == "text" {
			texts++
		}
		for _, a := range e.Attr {
			if strings.Contains(a.Value, "#-") || strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
				t.Errorf("%s: %s", e.Name.Local, a.Value)
			}
		}
	}
	if texts < 10 {
		t.Errorf("%d texts", texts)
	}
}

// A row of which nothing was measured is no reason to have no chart.
func TestChartOfNothing(t *testing.T) {
	k := row{title: "nothing", entrants: []entrant{{name: "absent", needs: "no-such-program-anywhere"}}}
	c := &comparison{rankings: []ranking{k.run(t.Context(), 1, io.Discard)}}
	if err := c.chart(io.Discard); err != nil {
		t.Error(err)
	}
}

// What Lapse breaks ends the run with an error; what peers break is shown.
func TestBroken(t *testing.T) {
	early := func(name string, lapse bool) entrant {
		return entrant{name, lapse, "", func(context.Context, bench.Load) (bench.Result, error) {
			return bench.Result{TasksPerSecond: 1, Faults: bench.Faults{Early: 1}}, nil
		}}
	}
	for _, lapse := range []bool{true, false} {
		k := row{entrants: []entrant{early("x", lapse)}}
		c := &comparison{rankings: []ranking{k.run(t.Context(), 2, io.Discard)}}
		if err := c.broken(); errors.Is(err, bench.ErrBroken) != lapse {
			t.Errorf("by Lapse %v: %v", lapse, err)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		all  []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(test.all); got != test.want {
			t.Errorf("%v: %v, want %v", test.all, got, test.want)
		}
	}
}
