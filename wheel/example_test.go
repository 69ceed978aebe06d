package wheel_test

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/wheel"
)

func ExampleWheel() {
	w := wheel.New(1, 1000) // ticks of 1 ms; it is 1000 ms past the epoch
	w.Add(1010, 1)
	mistake := w.Add(1020, 2)
	w.Add(1030, 3)
	w.Cancel(mistake)

	for {
		at, ok := w.Next()
		if !ok {
			break
		}
		w.Advance(at, func(values []uint64) { fmt.Println(at, values) })
	}
	// Output:
	// 1010 [1]
	// 1030 [3]
}

func ExampleRunner() {
	fired := make(chan uint64)
	r, err := wheel.NewRunner(wheel.Config{
		Fire: func(values []uint64) {
			for _, v := range values {
				fired <- v
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()

	due := time.Now().Add(20 * time.Millisecond)
	r.Add(due.UnixMilli()+1, 42) // the next whole millisecond: not before due
	fmt.Println(<-fired, !time.Now().Before(due))
	// Output: 42 true
}
