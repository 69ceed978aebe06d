package diskledger

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
)

// filled makes a ledger on the disk with records in tables and in the journal.
func filled(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ledger")
	for life := range int64(3) {
		l, _, err := childAdopts(dir)
		if err != nil {
			t.Fatal(err)
		}
		for n := range int64(50) {
			var b recovery.Batch
			b.Add(recovery.Change{
				ID:   id(life*100 + n),
				To:   recovery.Spot{Place: recovery.Pending, At: n},
				Data: []byte(strings.Repeat("x", 1000)),
			})
			if err := l.Apply(t.Context(), 0, &b); err != nil {
				t.Fatal(err)
			}
		}
		// Not by Close, which would flush records that are only in the journal.
		l.stop()
		<-l.kept
		if err := errors.Join(l.engine.close(), l.lock.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// without removes the files that match, and fails if there are none.
func without(pattern string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		names, _ := filepath.Glob(filepath.Join(dir, pattern))
		if len(names) == 0 {
			t.Fatalf("no %s to remove", pattern)
		}
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func write(name, content string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// damage flips a bit in the middle of the files that match.
func damage(pattern string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		names, _ := filepath.Glob(filepath.Join(dir, pattern))
		damaged := 0
		for _, name := range names {
			content, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if len(content) < 100 {
				continue
			}
			content[len(bytes.TrimRight(content, "\x00"))/3] ^= 1
			if err := os.WriteFile(name, content, 0o600); err != nil {
				t.Fatal(err)
			}
			damaged++
		}
		if damaged == 0 {
			t.Fatalf("no %s to damage", pattern)
		}
	}
}

// TestTornDirectory: a directory with missing or damaged files is refused, or its damage shows when
// it is read. It is never taken for an empty one.
func TestTornDirectory(t *testing.T) {
	t.Parallel()
	for name, tear := range map[string]func(*testing.T, string){
		"no manifest":               without("MANIFEST-*"),
		"manifest marker gone":      without("marker.manifest*"),
		"format marker gone":        without("marker.format*"),
		"both markers gone":         without("marker.*"),
		"no journal":                without("journal-*"),
		"a table is gone":           without("*.sst"),
		"LAPSE is gone":             without(markerName),
		"only LAPSE is left":        without("[^L]*"),
		"LAPSE is empty":            write(markerName, ""),
		"LAPSE is garbage":          write(markerName, "\x00\xff\x17"),
		"manifest is damaged":       damage("MANIFEST-*"),
		"journal is damaged inside": damage("journal-*"),
		"tables are damaged inside": damage("*.sst"),
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t)
			tear(t, dir)
			l, _, err := childAdopts(dir)
			records := 0
			if err == nil {
				err = l.Scan(t.Context(), func(page []recovery.Entry) error {
					records += len(page)
					return nil
				})
			}
			if closeErr := l.Close(); closeErr != nil {
				t.Logf("Close: %v", closeErr)
			}
			if err == nil {
				t.Fatalf("taken for whole, with %d records of 150", records)
			}
			t.Log(err)
			if errors.Is(err, recovery.ErrHeld) || errors.Is(err, recovery.ErrLayout) {
				t.Errorf("the wrong error: %v", err)
			}
			if l.state == opened && !strings.Contains(err.Error(), dir) {
				t.Errorf("the error does not name the directory: %v", err)
			}
		})
	}
}

func TestNewerLayout(t *testing.T) {
	dir := filled(t)
	write(markerName, "lapse ledger, layout 3\n")(t, dir)
	l, _, err := childAdopts(dir)
	if !errors.Is(err, recovery.ErrLayout) {
		t.Fatalf("Adopt: %v, want ErrLayout", err)
	}
	write(markerName, "lapse ledger, layout 1\n")(t, dir)
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Errorf("Adopt of the known layout: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestForeignDirectory: Lapse makes no ledger among files of other programs.
func TestForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	write("thesis.tex", "...")(t, dir)
	if _, _, err := childAdopts(dir); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("Adopt: %v", err)
	}
	file := filepath.Join(dir, "thesis.tex")
	if _, _, err := childAdopts(file); err == nil || errors.Is(err, recovery.ErrHeld) {
		t.Errorf("Adopt of a file: %v", err)
	}
}

func TestDirectoryIsPrivate(t *testing.T) {
	info, err := os.Stat(filled(t))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory's mode is %v, want 0700: %v", info.Mode(), err)
	}
}

// TestSymbolicLink: two names of one directory are one ledger.
func TestSymbolicLink(t *testing.T) {
	dir := filled(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Skip(err)
	}
	l, _, err := childAdopts(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, _, err := childAdopts(link); !errors.Is(err, recovery.ErrHeld) {
		t.Errorf("Adopt by another name: %v, want ErrHeld", err)
	}
}

// TestSpace: the free space is read once a second at most, and the answer does not flutter at the
// limit.
func TestSpace(t *testing.T) {
	s := space{floor: 100 << 20}
	now := time.Unix(1000, 0)
	asked := 0
	var free uint64
	var failure error
	condition := func(after time.Duration, bytes uint64) error {
		now = now.Add(after)
		free = bytes
		return s.condition(now, func() (uint64, error) { asked++; return free, failure }, "/ledger")
	}
	steps := []struct {
		after time.Duration
		mib   uint64
		full  bool
		asks  int
	}{
		{0, 150, false, 1},
		{99 * time.Millisecond, 10, false, 1},
		{time.Millisecond, 99, true, 2},
		{time.Second, 101, true, 3}, // not enough more
		{time.Second, 106, true, 4},
		{time.Millisecond, 500, true, 4},
		{time.Second, 107, false, 5},
		{time.Second, 100, false, 6},
		{time.Second, 99, true, 7},
	}
	for i, step := range steps {
		err := condition(step.after, step.mib<<20)
		if errors.Is(err, recovery.ErrFull) != step.full || asked != step.asks {
			t.Errorf("step %d: %v after %d questions", i, err, asked)
		}
	}
	for _, step := range []struct {
		mib  uint64
		used bool
	}{{25, false}, {24, true}, {26, true}, {27, false}, {26, false}, {0, true}, {107, false}} {
		if err := condition(time.Second, step.mib<<20); errors.Is(err, recovery.ErrReserveUsed) != step.used {
			t.Errorf("with %d MiB: %v", step.mib, err)
		}
	}
	failure = errors.New("no figure")
	if err := condition(time.Second, 0); err != nil {
		t.Errorf("without a figure: %v", err)
	}
}

// TestLowDisk asks through the ledger.
func TestLowDisk(t *testing.T) {
	disk := vfs.NewMem()
	disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 5 << 20, TotalBytes: 1 << 30})
	for minFree, full := range map[int64]bool{0: true, 4 << 20: false, -1: false} {
		l, err := Open("/ledger", Options{fs: disk, MinFree: minFree, Log: quiet(), extent: small})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = l.Condition()
		if errors.Is(err, recovery.ErrFull) != full {
			t.Errorf("MinFree %d with 5 MiB left: %v", minFree, err)
		}
		if full && !strings.Contains(err.Error(), "5 MiB") {
			t.Errorf("%q has no figures", err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
