package hugepage

import (
	"errors"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"testing"
)

// faked returns a Collapser that notes which blocks it collapses, and fails with *err.
func faked() (c *Collapser, collapsed *[]uintptr, err *error) {
	collapsed, err = new([]uintptr), new(error)
	c = &Collapser{begun: true, used: map[uintptr]int{}}
	c.collapse = func(block uintptr) error {
		if *err == nil {
			*collapsed = append(*collapsed, block)
		}
		return *err
	}
	return c, collapsed, err
}

// all collapses what waits.
func all(t *testing.T, c *Collapser) {
	t.Helper()
	for {
		if found, err := c.Collapse(); err != nil {
			t.Fatal(err)
		} else if !found {
			return
		}
	}
}

// A block is collapsed once, when three quarters of it are in use.
func TestCollapse(t *testing.T) {
	const quarter = blockSize / 4
	for _, test := range []struct {
		name   string
		pieces []Piece
		want   []uintptr
	}{
		{"too little", []Piece{{blockSize, 3*quarter - 1}}, nil},
		{"enough", []Piece{{blockSize, 3 * quarter}}, []uintptr{blockSize}},
		{"in pieces", []Piece{{blockSize + quarter, quarter}, {blockSize, quarter}, {blockSize + 3*quarter, quarter}}, []uintptr{blockSize}},
		{"once", []Piece{{blockSize, 3 * quarter}, {blockSize + 3*quarter, quarter}}, []uintptr{blockSize}},
		{"over several", []Piece{{blockSize + quarter, 3 * blockSize}}, []uintptr{blockSize, 2 * blockSize, 3 * blockSize}},
		{"not the ends", []Piece{{blockSize + 2*quarter, 2 * blockSize}}, []uintptr{2 * blockSize}},
		{"in use anew", []Piece{{blockSize, blockSize}, {blockSize, blockSize}}, []uintptr{blockSize, blockSize}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, collapsed, _ := faked()
			for _, p := range test.pieces {
				c.Add([]Piece{p})
			}
			if all(t, c); !slices.Equal(*collapsed, test.want) {
				t.Errorf("collapsed %#x, want %#x", *collapsed, test.want)
			}
		})
	}
}

// A block that the kernel refuses is passed over. Where it cannot do it at all, it is not asked
// again.
func TestRefused(t *testing.T) {
	c, collapsed, refusal := faked()
	c.Add([]Piece{{blockSize, 2 * blockSize}})
	*refusal = errors.New("no memory")
	if found, err := c.Collapse(); !found || !errors.Is(err, *refusal) {
		t.Errorf("refused: %v, %v", found, err)
	}
	*refusal = nil
	if all(t, c); !slices.Equal(*collapsed, []uintptr{2 * blockSize}) {
		t.Errorf("collapsed %#x", *collapsed)
	}
	if done, refused := c.Counts(); done != 1 || refused != 1 {
		t.Errorf("%d are done and %d refused", done, refused)
	}
	c.off = true
	c.Add([]Piece{{8 * blockSize, blockSize}})
	if found, err := c.Collapse(); found || err != nil {
		t.Errorf("turned off: %v, %v", found, err)
	}
}

// Of what is in use, the kernel makes huge pages, and the content stays.
func TestKernel(t *testing.T) {
	if runtime.GOOS != "linux" || !allowed() {
		t.Skip("the kernel has no huge pages of 2 MiB")
	}
	before := hugeBytes(t)
	mem := make([]byte, 16<<20)
	for i := range mem {
		mem[i] = byte(i % 251)
	}
	var c Collapser
	c.Add([]Piece{Of(mem)})
	for {
		found, err := c.Collapse()
		if err != nil {
			t.Skip("the kernel refuses: ", err)
		}
		if !found {
			break
		}
	}
	if done, _ := c.Counts(); done < 7 {
		t.Errorf("%d blocks of 16 MiB are collapsed", done)
	}
	if after := hugeBytes(t); after < before+12<<20 {
		t.Errorf("%d bytes are in huge pages, %d before", after, before)
	}
	for i := range mem {
		if mem[i] != byte(i%251) {
			t.Fatalf("byte %d has changed", i)
		}
	}
}

// hugeBytes returns how much of the memory of this process is in huge pages.
func hugeBytes(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	found := regexp.MustCompile(`AnonHugePages: +(\d+) kB`).FindSubmatch(text)
	if err != nil || found == nil {
		t.Skip("the kernel does not tell: ", err)
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
