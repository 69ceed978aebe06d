package diskledger

import (
	"io"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
)

func TestMain(m *testing.M) {
	runChild()
	goleak.VerifyTestMain(m)
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// A powerCut keeps a ledger in a file system in memory. A crash leaves just
// what was synced.
type powerCut struct {
	fs     *vfs.MemFS
	extent extent
	last   *Ledger
}

func (h *powerCut) Open(t *testing.T) recovery.Ledger {
	l, err := Open("/ledger", Options{fs: h.fs, extent: h.extent, Log: quiet()})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	h.last = l
	return l
}

func (h *powerCut) Crash(t *testing.T) {
	h.fs = h.fs.CrashClone(vfs.CrashCloneCfg{})
	if err := h.last.Close(); err != nil { // on the old file system, for its goroutines' sake
		t.Errorf("Close: %v", err)
	}
}

func TestConformanceAcrossPowerCuts(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) ledgertest.Harness {
		return &powerCut{fs: vfs.NewCrashableMem(), extent: small}
	})
}

// small makes a journal of small files, which is quickly made in memory.
var small = extent{segment: 128 << 10, kept: usual.kept, together: usual.together, most: usual.most}

// hasty has the store take records soon after they are written.
var hasty = extent{segment: 512, kept: 1, together: 1, most: 3}

func TestConformanceWithShortJournal(t *testing.T) {
	ledgertest.Run(t, func(*testing.T) ledgertest.Harness {
		return &powerCut{fs: vfs.NewCrashableMem(), extent: hasty}
	})
}
