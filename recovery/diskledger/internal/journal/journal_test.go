package journal

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

const dir = "/journal"

func opened(t *testing.T, fs vfs.FS, exists bool) *Journal {
	t.Helper()
	j, err := Open(Options{FS: fs, Dir: dir, Size: 256}, exists)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// replayed returns the payloads that a journal has.
func replayed(t *testing.T, fs vfs.FS) (payloads []string) {
	t.Helper()
	j := opened(t, fs, true)
	if err := j.Replay(func(_ Place, frame []byte) error {
		payloads = append(payloads, string(frame[HeaderLen:]))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return payloads
}

func frame(payload string) []byte { return append(make([]byte, HeaderLen), payload...) }

func appended(t *testing.T, j *Journal, payload string) Place {
	t.Helper()
	at, _, err := j.Append(frame(payload))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func newFS(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := fs.OpenDir("/")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(root.Sync(), root.Close()); err != nil {
		t.Fatal(err)
	}
	return fs
}

func content(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func replace(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// What was appended is there after a power cut, whatever that leaves of what was not synced; what
// was freed is not, once another segment has begun; and the files are used again.
func TestFramesOutlivePowerCuts(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	var live []string
	bySegment := make(map[uint64]int)
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 400 {
		p := fmt.Sprint(n, " ", strings.Repeat("x", random.IntN(90)))
		at := appended(t, j, p)
		live = append(live, p)
		bySegment[at.Segment]++
		if closed := j.Closed(); len(closed) > 3 {
			j.Free(closed[0])
			if err := j.Begin(); err != nil {
				t.Fatal(err)
			}
			live = live[bySegment[closed[0]]:]
		}
		if n%10 != 0 {
			continue
		}
		cut := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: random})
		if got := replayed(t, cut); !slices.Equal(got, live) {
			t.Fatalf("after %d frames there are %q, want %q", n+1, got, live)
		}
	}
	names, err := fs.List(dir)
	if err != nil || len(names) > 7 {
		t.Errorf("400 frames take the files %v, %v", names, err)
	}
}

// As long as the journal is held, a place leads to its frame, and a copy has all frames of before.
func TestHold(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	at := appended(t, j, "first")
	want := []string{"first"}
	release := j.Hold()
	for n := range 40 {
		p := strings.Repeat(fmt.Sprint(n%10), 100)
		appended(t, j, p)
		want = append(want, p)
		for _, segment := range j.Closed() {
			j.Free(segment)
		}
	}
	if left := j.Closed(); len(left) > 0 {
		t.Errorf("%v are closed and were freed", left)
	}
	b := make([]byte, 5)
	if err := j.Read(at.Segment, at.Offset+HeaderLen, b); err != nil || string(b) != "first" {
		t.Errorf("held, but read %q, %v", b, err)
	}
	backup := newFS(t)
	j.FS = backup
	if err := j.Copy(dir); err != nil {
		t.Fatal(err)
	}
	j.FS = fs
	if got := replayed(t, backup); !slices.Equal(got, want) {
		t.Errorf("the copy has %q, want %q", got, want)
	}
	release()
	before, _ := fs.List(dir)
	for range 40 {
		appended(t, j, strings.Repeat("z", 100))
		for _, segment := range j.Closed() {
			j.Free(segment)
		}
	}
	if after, _ := fs.List(dir); len(after) > len(before)+1 {
		t.Errorf("%d files after the release, %d before", len(after), len(before))
	}
}

// What a Hold kept is removed once it is free, and neither a frame nor what is held goes with it.
func TestTrim(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	fill := func(payload string) {
		for range 40 {
			appended(t, j, strings.Repeat(payload, 100))
		}
	}
	files := func() int {
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	release := j.Hold()
	fill("a")
	for _, segment := range j.Closed() {
		j.Free(segment)
	}
	held := files()
	if j.Trim(0); files() != held {
		t.Errorf("%d files are left of %d that are held", files(), held)
	}
	release()
	want := []string{"b", "c"}
	for range 2 { // the second one says that the last a is free
		if err := j.Begin(); err != nil {
			t.Fatal(err)
		}
		for _, segment := range j.Closed() {
			j.Free(segment)
		}
	}
	appended(t, j, "b")
	if j.Trim(2); files() != 3 {
		t.Errorf("%d files are left, want the current one and 2", files())
	}
	j.Trim(0)
	appended(t, j, "c")
	if got := replayed(t, fs); files() != 1 || !slices.Equal(got, want) {
		t.Errorf("%d files with %q are left, want 1 with %q", files(), got, want)
	}
	fill("d") // in files that are made anew
	if got := replayed(t, fs); len(got) != len(want)+40 {
		t.Errorf("%d frames, want %d", len(got), len(want)+40)
	}
}

// Frames and openings are written while free files are removed.
func TestTrimBesideAppends(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	done := make(chan struct{})
	var trimming sync.WaitGroup
	trimming.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				j.Trim(0)
			}
		}
	})
	var want []string
	for n := range 300 {
		want = append(want, strings.Repeat(fmt.Sprint(n%10), 100))
		appended(t, j, want[n])
		for closed := j.Closed(); len(closed) > 4; closed = closed[1:] {
			j.Free(closed[0])
		}
	}
	close(done)
	trimming.Wait()
	if got := replayed(t, fs); !slices.Equal(got, want[len(want)-len(got):]) || len(got) < 5 {
		t.Errorf("%d frames are left, the last of %d expected", len(got), len(want))
	}
}

// Holds that overlap without end do not keep files from being used again.
func TestOverlappingHolds(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	release := j.Hold()
	for range 100 {
		appended(t, j, strings.Repeat("x", 100))
		for _, segment := range j.Closed() {
			j.Free(segment)
		}
		next := j.Hold()
		release()
		release = next
	}
	release()
	if names, err := fs.List(dir); err != nil || len(names) > 5 {
		t.Errorf("100 frames take the files %v, %v", names, err)
	}
}

// A segment that was freed may be written over once an opening that says so is durable: were its
// own torn, the segment would be missed. So a copy of before has it as well.
func TestFreedSegmentsStay(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	var want []string
	for len(j.Closed()) < 3 {
		want = append(want, strings.Repeat(fmt.Sprint(len(want)), 60))
		appended(t, j, want[len(want)-1])
	}
	for _, segment := range j.Closed() {
		j.Free(segment)
	}
	backup := newFS(t)
	j.FS = backup
	if err := j.Copy(dir); err != nil {
		t.Fatal(err)
	}
	if got := replayed(t, backup); !slices.Equal(got, want) {
		t.Errorf("the copy has %q, want %q", got, want)
	}
	j.FS = fs
	if err := j.Begin(); err != nil {
		t.Fatal(err)
	}
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b := content(t, fs, dir+"/"+name)
		if h, ok := headerOf(b, salt{}); ok && h.segment == j.last {
			b[HeaderLen+3] ^= 1
			replace(t, fs, dir+"/"+name, b)
		}
	}
	if got := replayed(t, fs); !slices.Equal(got, want) {
		t.Errorf("behind a torn opening there is %q, want %q", got, want)
	}
}

// A last frame that was not synced is durable before it is visited.
func TestLastFrameIsSettled(t *testing.T) {
	fs := newFS(t)
	fails := false
	j := opened(t, errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fails && op.Kind == errorfs.OpFileSyncData {
			return errors.New("the disk says no")
		}
		return nil
	})), false)
	appended(t, j, "one")
	fails = true
	if _, _, err := j.Append(frame("two")); err == nil {
		t.Fatal("no error")
	}
	j = opened(t, fs, true)
	if err := j.Replay(func(_ Place, frame []byte) error {
		if got := replayed(t, fs.CrashClone(vfs.CrashCloneCfg{})); !slices.Contains(got, string(frame[HeaderLen:])) {
			t.Errorf("%q is visited, and a power cut leaves %q", frame[HeaderLen:], got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A segment without frames is not free while an older one is live.
func TestBeginAgain(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	appended(t, j, "one")
	if err := j.Begin(); err != nil {
		t.Fatal(err)
	}
	appended(t, j, "two")
	for range 2 {
		if err := j.Begin(); err != nil {
			t.Fatal(err)
		}
		if closed := j.Closed(); closed[0] == 1 {
			j.Free(1)
		}
	}
	appended(t, j, "three")
	if err := j.Begin(); err != nil {
		t.Fatal(err)
	}
	if got := replayed(t, fs); !slices.Equal(got, []string{"two", "three"}) {
		t.Errorf("there are %q", got)
	}
}

// What is damaged or missing is refused, and not taken for the end.
func TestTorn(t *testing.T) {
	for name, tear := range map[string]func(t *testing.T, fs vfs.FS, places []Place){
		"a frame inside": func(t *testing.T, fs vfs.FS, places []Place) {
			flip(t, fs, places[1])
		},
		"the last frame of a closed segment": func(t *testing.T, fs vfs.FS, places []Place) {
			for i := range places[1:] {
				if places[i+1].Segment > places[i].Segment {
					flip(t, fs, places[i])
					return
				}
			}
		},
		"a frame inside the last segment": func(t *testing.T, fs vfs.FS, places []Place) {
			flip(t, fs, places[len(places)-2])
		},
		"the opening of the first segment": func(t *testing.T, fs vfs.FS, places []Place) {
			flip(t, fs, Place{Segment: places[0].Segment})
		},
		"the opening of the last segment": func(t *testing.T, fs vfs.FS, places []Place) {
			flip(t, fs, Place{Segment: places[len(places)-1].Segment})
		},
		"a file is missing": func(t *testing.T, fs vfs.FS, _ []Place) {
			if err := fs.Remove(dir + "/journal-1"); err != nil {
				t.Fatal(err)
			}
		},
		"all files are empty": func(t *testing.T, fs vfs.FS, _ []Place) {
			names, err := fs.List(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				replace(t, fs, dir+"/"+name, nil)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newFS(t)
			j := opened(t, fs, false)
			var places []Place
			for n := range 11 {
				places = append(places, appended(t, j, strings.Repeat(fmt.Sprint(n%10), 60)))
			}
			tear(t, fs, places)
			j, err := Open(Options{FS: fs, Dir: dir, Size: 256}, true)
			if err == nil {
				err = j.Replay(func(Place, []byte) error { return nil })
				_ = j.Close()
			}
			if !errors.Is(err, ErrTorn) {
				t.Errorf("%v, want ErrTorn", err)
			}
			t.Log(err)
		})
	}
}

// flip changes a bit of the frame at a place. The n-th segment is in the n-th file here.
func flip(t *testing.T, fs vfs.FS, at Place) {
	t.Helper()
	name := fmt.Sprintf("%s/%s%d", dir, Prefix, at.Segment-1)
	b := content(t, fs, name)
	b[at.Offset+HeaderLen+3] ^= 1
	replace(t, fs, name, b)
}

// A last frame of which a part is missing was never confirmed.
func TestTornEnd(t *testing.T) {
	fs := newFS(t)
	j := opened(t, fs, false)
	appended(t, j, "one")
	at := appended(t, j, "two")
	flip(t, fs, Place{at.Segment, at.Offset - 1})
	if got := replayed(t, fs); !slices.Equal(got, []string{"one"}) {
		t.Errorf("%q", got)
	}
}

func FuzzHeader(f *testing.F) {
	sealed := frame("payload")
	seal(sealed, 1, 2, salt{})
	f.Add(sealed)
	f.Add(make([]byte, HeaderLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := headerOf(b, salt{})
		if ok && (h.end < HeaderLen || h.end > len(b) || h.segment == 0) {
			t.Errorf("%+v of %d bytes", h, len(b))
		}
		if ok != hasFrame(b[:min(len(b), max(h.end, HeaderLen))], salt{}, func(header) bool { return true }) && ok {
			t.Error("a frame that is not found")
		}
	})
}
