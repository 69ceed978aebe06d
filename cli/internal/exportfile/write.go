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
)

// A Writer writes an export to a file.
type Writer struct {
	name    string
	file    *os.File
	written progress
}

// progress is how much of a partial file counts.
type progress struct {
	Topics []string `json:"topics,omitempty"` // that the export is limited to
	Cursor string   `json:"cursor"`           // of the next page
	Bytes  int64    `json:"bytes"`
	Lines  int64    `json:"lines"`
}

// New begins a file, or goes on with what an interrupted export of the same topics has left.
// Errors: ErrExists, ErrOther, or those of the files.
func New(name string, topics []string) (w *Writer, err error) {
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%w: %s", ErrExists, name)
		}
		return nil, err
	}
	w = &Writer{name: name, written: progress{Topics: topics}}
	text, err := os.ReadFile(name + progressSuffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		var before progress
		if err := json.Unmarshal(text, &before); err != nil {
			return nil, fmt.Errorf("%s: %w", name+progressSuffix, err)
		}
		if !slices.Equal(before.Topics, topics) {
			return nil, fmt.Errorf("%w; to begin anew, remove %s and %s", ErrOther, name+progressSuffix, name+partialSuffix)
		}
		w.written = before
	}
	if w.file, err = os.OpenFile(name+partialSuffix, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	// What was written behind the last page that counts is not needed.
	err = w.file.Truncate(w.written.Bytes)
	if err == nil {
		_, err = w.file.Seek(w.written.Bytes, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	return w, nil
}

// Cursor is that of the next page; empty: the export begins.
func (w *Writer) Cursor() string { return w.written.Cursor }

// Lines is how many lines are written.
func (w *Writer) Lines() int64 { return w.written.Lines }

// Add writes a page, which counts from then on. next is the cursor of the page after it.
func (w *Writer) Add(page []byte, next string) error {
	text, err := compress(w.name, page)
	if err != nil {
		return err
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
	return save(w.name+progressSuffix, w.written)
}

// Finish gives the file its name.
func (w *Writer) Finish() error {
	if err := w.Close(); err != nil {
		return err
	}
	if err := os.Rename(w.name+partialSuffix, w.name); err != nil {
		return err
	}
	if err := os.Remove(w.name + progressSuffix); err != nil {
		return err
	}
	return syncDirectory(w.name)
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
	return errors.Join(w.Close(), os.Remove(w.name+partialSuffix))
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
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
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
