package main

import (
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

func init() {
	register(0, "pending", "memory", func(ctx context.Context, b *bout) error {
		before, err := resident()
		if err != nil {
			return err
		}
		// Tasks lie in large blocks: with few tasks, how full the last block is would show.
		const tasks = 3 * pending
		if err := b.schedule(ctx, "wait", tasks, batch, senders, ahead()); err != nil {
			return err
		}
		after, err := resident()
		if err != nil {
			return err
		}
		return b.out.Encode(measure.Sample{Path: "pending/memory", Cost: float64(after-before) / tasks})
	})
}

// resident is the memory of this process without what can be given back, in bytes.
func resident() (int, error) {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	return pages * os.Getpagesize(), err
}
