package exportfile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-json"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const (
	partialSuffix  = ".partial"
	progressSuffix = ".progress"
)

// Errors of New.
var (
	// ErrExists: the file is there already.
	ErrExists = errors.New("the file exists")
	// ErrOther: what an interrupted export has left is of another one.
	ErrOther = errors.New("an export of something else was interrupted")
	// ErrBusy: another process writes the file.
	ErrBusy = errors.New("another lapse export writes")
)

// A Writer writes an export to a file.
type Writer struct {
	name    string
	file    *os.File // locked
	written progress
	anew    string
}

// progress is how much of a partial file counts.
type progress struct {
	Server string   `json:"server"`           // that is exported
	Topics []string `json:"topics,omitempty"` // that the export is limited to
	Cursor string   `json:"cursor"`           // of the next page
	place
	Tasks *place `json:"tasks,omitempty"` // where they begin
}

// A place in a file is behind so much of it.
type place struct {
	Bytes int64 `json:"bytes"`
	Lines int64 `json:"lines"`
}

// New begins a file, or goes on with what an interrupted export of the same server and topics has
// left. Errors: ErrExists, ErrOther, ErrBusy, or those of the files.
func New(name, server string, topics []string) (w *Writer, err error) {
	if err := checkAbsent(name); err != nil {
		return nil, err
	}
	w = &Writer{name: name, written: progress{Server: strings.TrimRight(server, "/"), Topics: topics}}
	if w.file, err = locked(name); err != nil {
		return nil, err
	}
	if err := w.begin(); err != nil {
		return nil, errors.Join(err, w.abandon())
	}
	return w, nil
}

// checkAbsent returns ErrExists if the file is there.
func checkAbsent(name string) error {
	_, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%w: %s", ErrExists, name)
	}
	return err
}

// locked opens the partial file, and locks it. The lock is the kernel's and ends with the process,
// however it ends.
func locked(name string) (*os.File, error) {
	f, err := os.OpenFile(name+partialSuffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%w %s", ErrBusy, name)
	case err != nil:
		err = fmt.Errorf("locking %s: %w", f.Name(), err)
	default:
		// The other process may have renamed or removed the file before it has unlocked it.
		var mine, there fs.FileInfo
		if mine, err = f.Stat(); err == nil {
			there, err = os.Stat(f.Name())
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(mine, there) {
			err = fmt.Errorf("%w %s", ErrBusy, name)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// begin finds out where the file goes on, and cuts it off there.
func (w *Writer) begin() error {
	if err := checkAbsent(w.name); err != nil { // another process has ended before the lock
		return err
	}
	if err := w.resume(); err != nil {
		return err
	}
	return w.cut()
}

// cut drops what was written behind the last page that counts.
func (w *Writer) cut() error {
	if err := w.file.Truncate(w.written.Bytes); err != nil {
		return err
	}
	_, err := w.file.Seek(w.written.Bytes, io.SeekStart)
	return err
}

// resume reads what an interrupted export has left.
func (w *Writer) resume() error {
	text, err := os.ReadFile(w.name + progressSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var before progress
	if err := json.Unmarshal(text, &before); err != nil {
		return fmt.Errorf("%s: %w", w.name+progressSuffix, err)
	}
	what := ""
	switch {
	case before.Server != w.written.Server:
		what = fmt.Sprintf("it was of the server %q", before.Server)
	case !slices.Equal(before.Topics, w.written.Topics):
		what = "it was of other topics"
	}
	if what != "" {
		return fmt.Errorf("%w: %s; to begin anew, remove %s and %s", ErrOther, what, w.name+progressSuffix, w.name+partialSuffix)
	}
	info, err := w.file.Stat()
	if err != nil {
		return err
	}
	switch {
	case info.Size() < before.Bytes:
		w.anew = fmt.Sprintf("%s has %d bytes, and should have %d", w.name+partialSuffix, info.Size(), before.Bytes)
	case before.Cursor == "":
		w.anew = w.name + progressSuffix + " does not say where to go on"
	default:
		w.written = before
		return nil
	}
	// It must not count what is written from now on.
	if err := os.Remove(w.name + progressSuffix); err != nil {
		return err
	}
	return syncDirectory(w.name)
}

// abandon closes a file that New could not begin, and removes it if there is nothing in it.
func (w *Writer) abandon() error {
	info, err := w.file.Stat()
	if err == nil && info.Size() == 0 {
		return w.Discard()
	}
	return errors.Join(err, w.Close())
}

// Anew says why the export does not go on with what an interrupted one has left; empty: it does, or
// there was nothing.
func (w *Writer) Anew() string { return w.anew }

// Cursor is that of the next page; empty: the export begins.
func (w *Writer) Cursor() string { return w.written.Cursor }

// Lines is how many lines are written.
func (w *Writer) Lines() int64 { return w.written.Lines }

// Add writes a page, which counts from then on. next is the cursor of the page after it. begins
// says that the tasks begin behind it. If they have begun before, what was written since is
// dropped.
func (w *Writer) Add(page []byte, next string, begins bool) error {
	text, err := compress(w.name, page)
	if err != nil {
		return err
	}
	if begins && w.written.Tasks != nil {
		w.written.place = *w.written.Tasks
		if err := w.cut(); err != nil {
			return err
		}
	}
	if _, err := w.file.Write(text); err != nil {
		return err
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.written.Bytes += int64(len(text))
	w.written.Lines += int64(bytes.Count(page, []byte("\n")))
	w.written.Cursor = next
	if begins {
		tasks := w.written.place
		w.written.Tasks = &tasks
	}
	return save(w.name+progressSuffix, w.written)
}

// Finish gives the file its name.
func (w *Writer) Finish() error {
	// The file is unlocked last: until then no other export begins.
	err := os.Rename(w.name+partialSuffix, w.name)
	if err == nil {
		err = os.Remove(w.name + progressSuffix)
	}
	if err == nil {
		err = syncDirectory(w.name)
	}
	return errors.Join(err, w.Close())
}

// Close leaves the file as it is, so that another export can go on. It may be called again.
func (w *Writer) Close() error {
	if w.file == nil {
		return nil
	}
	err := w.file.Close()
	w.file = nil
	return err
}

// Discard closes a file to which nothing was added, and removes it.
func (w *Writer) Discard() error {
	return errors.Join(os.Remove(w.name+partialSuffix), w.Close())
}

// compress compresses a page as the name of its file says, so that it can be read by itself.
func compress(name string, page []byte) ([]byte, error) {
	var out bytes.Buffer
	var to io.WriteCloser
	switch {
	case strings.HasSuffix(name, ".gz"):
		to = gzip.NewWriter(&out)
	case strings.HasSuffix(name, ".zst"):
		encoder, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		to = encoder
	default:
		return page, nil
	}
	_, err := to.Write(page)
	err = errors.Join(err, to.Close())
	return out.Bytes(), err
}

// save writes a file in one step.
func save(name string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	draft := name + ".new"
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(draft, name); err != nil {
		return err
	}
	return syncDirectory(name)
}

// syncDirectory makes the names in the directory of a file durable.
func syncDirectory(name string) error {
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
