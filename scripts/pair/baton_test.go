package main

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

// Two sides do their rounds in turn, and one goes on alone when the other has ended.
func TestBaton(t *testing.T) {
	var order strings.Builder // written by the side that has the baton
	b := newBaton(1)
	var group sync.WaitGroup
	for side, rounds := range []int{3, 5} {
		group.Go(func() {
			defer b.end(side)
			b.await(side)
			for range rounds {
				b.yield(side)
				order.WriteByte(byte('0' + side))
			}
		})
	}
	group.Wait()
	if got := order.String(); got != "10101011" {
		t.Errorf("the sides run in the order %s", got)
	}
}

// A path costs what all of its rounds have cost, and nothing of what prepares them.
func TestMeasure(t *testing.T) {
	yields, prepared, made := 0, 0, uint64(0)
	m := measure.Meter{
		Objects: func() (uint64, error) { return made, nil },
		Yield:   func() error { yields++; made += 1000; return nil },
	}
	s, err := m.Measure(measure.Path{
		Name: "p", Rounds: 3,
		Prepare: func() error { prepared++; made += 1000; return nil },
		Round:   func(round int) (int, error) { made += uint64(10 * round); return 10, nil },
	})
	if err != nil || s.Path != "p" || yields != 3 || prepared != 3 || s.Allocs != 1 || s.Rate <= 0 {
		t.Errorf("%+v, %v, after %d yields", s, err, yields)
	}
	_, err = m.Measure(measure.Path{Name: "p", Rounds: 1, Round: func(int) (int, error) { return 0, errors.New("broken") }})
	if err == nil || err.Error() != "p: broken" {
		t.Errorf("%v", err)
	}
}
