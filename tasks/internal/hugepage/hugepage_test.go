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

// faked returns a Collapser that notes which blocks it collapses, and is refused with *err.
func faked() (c *Collapser, collapsed *[]uintptr, err *error) {
	collapsed, err = new([]uintptr), new(error)
	c = &Collapser{begun: true, blocks: map[uintptr]*block{}}
	c.collapse = func(block uintptr) error {
		if *err == nil {
			*collapsed = append(*collapsed, block)
		}
		return *err
	}
	return c, collapsed, err
}

// A block is collapsed once, as long as three quarters of it are in use.
func TestCollapse(t *testing.T) {
	const quarter = blockSize / 4
	gone := func(address uintptr, bytes int) Piece { return Piece{address, bytes}.Gone() }
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
		{"the same place again and again", []Piece{{blockSize, quarter}, gone(blockSize, quarter), {blockSize, quarter}, gone(blockSize, quarter), {blockSize, quarter}}, nil},
		{"given up while it waits", []Piece{{blockSize, blockSize}, gone(blockSize, 2*quarter)}, nil},
		{"given up and taken while it waits", []Piece{{blockSize, blockSize}, gone(blockSize, blockSize), {blockSize, blockSize}}, []uintptr{blockSize}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, collapsed, _ := faked()
			c.Note(test.pieces)
			for c.Collapse() {
			}
			if !slices.Equal(*collapsed, test.want) {
				t.Errorf("collapsed %#x, want %#x", *collapsed, test.want)
			}
		})
	}
}

// Of little memory, nothing is collapsed.
func TestLittleMemory(t *testing.T) {
	c, collapsed, _ := faked()
	c.fewest = 3
	c.Note([]Piece{{blockSize, 2 * blockSize}})
	if c.Collapse() {
		t.Errorf("collapsed %#x", *collapsed)
	}
	whole := Piece{blockSize, blockSize}
	for range 100 { // what comes and goes takes no place
		c.Note([]Piece{whole.Gone(), whole})
		c.Collapse()
	}
	if len(c.waiting) != 2 {
		t.Errorf("%d blocks wait, want 2", len(c.waiting))
	}
	c.Note([]Piece{{3 * blockSize, 1}})
	for c.Collapse() {
	}
	if len(*collapsed) != 2 {
		t.Errorf("collapsed %#x, want two of three blocks", *collapsed)
	}
}

// A block of which enough was given up and taken again is collapsed again. Nothing is kept of one
// that is free.
func TestCollapseAgain(t *testing.T) {
	c, collapsed, _ := faked()
	whole := Piece{blockSize, blockSize}
	for range 2 {
		c.Note([]Piece{whole})
		for c.Collapse() {
		}
		c.Note([]Piece{whole.Gone()})
	}
	if len(*collapsed) != 2 || len(c.blocks) != 0 {
		t.Errorf("collapsed %#x, %d blocks are kept", *collapsed, len(c.blocks))
	}
}

// A block that the kernel refuses is passed over. When it refuses all of them, it is asked no more.
func TestRefused(t *testing.T) {
	c, collapsed, refusal := faked()
	c.Note([]Piece{{blockSize, 2 * blockSize}})
	*refusal = errors.New("not this one")
	if !c.Collapse() {
		t.Error("the other block is not tried")
	}
	*refusal = nil
	for c.Collapse() {
	}
	if got := c.Counts(); !slices.Equal(*collapsed, []uintptr{2 * blockSize}) || got != (Counts{Collapsed: 1, Refused: 1}) {
		t.Errorf("collapsed %#x, %+v", *collapsed, got)
	}

	c, collapsed, refusal = faked()
	c.Note([]Piece{{blockSize, 2 * hopeless * blockSize}})
	*refusal = errors.New("never")
	for range 2 * hopeless {
		c.Collapse()
	}
	*refusal = nil
	c.Note([]Piece{{blockSize, 2 * hopeless * blockSize}})
	if got := c.Counts(); c.Collapse() || got != (Counts{Refused: hopeless, Off: true}) {
		t.Errorf("collapsed %#x, %+v", *collapsed, got)
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
	c.Note([]Piece{Of(mem)})
	c.fewest = 0
	ask := c.collapse
	c.collapse = func(block uintptr) error {
		err := ask(block)
		if full, passing := kindOf(err); full || passing {
			t.Skip("the kernel has none at the moment: ", err)
		}
		return err
	}
	for c.Collapse() {
	}
	if n := c.Counts().Collapsed; n < 7 {
		t.Errorf("%d blocks of 16 MiB are collapsed", n)
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
