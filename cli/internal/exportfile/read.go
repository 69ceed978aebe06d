package exportfile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/goccy/go-json"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/lapsehq/lapse/client"
)

const importedSuffix = ".imported"

var errShared = errors.New("another lapse import of this file is running and keeps its place")

// A Reader reads an export, compressed or not.
type Reader struct {
	io.Reader
	name  string
	file  *os.File // locked, if it is regular and not shared
	info  fs.FileInfo
	read  atomic.Int64 // bytes of the file
	close func()

	shared bool // another process reads the file: .imported is its own
}

// Open opens a file; - is standard input.
func Open(name string) (*Reader, error) {
	r := &Reader{name: name, file: os.Stdin}
	if name != "-" {
		var err error
		if r.file, err = os.Open(name); err != nil {
			return nil, err
		}
		if r.info, err = r.file.Stat(); err != nil {
			return nil, errors.Join(err, r.file.Close())
		}
		r.lock()
	}
	from := bufio.NewReaderSize(counter{r.file, &r.read}, 256<<10)
	head, err := from.Peek(4) // of an empty file there is nothing to see
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, r.Close())
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		if r.Reader, err = gzip.NewReader(from); err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(err, r.Close())
		}
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.Reader, r.close = d, d.Close
	default:
		r.Reader = from
	}
	return r, nil
}

// lock finds out whether another process reads the file. Where files cannot be locked, none does.
func (r *Reader) lock() {
	if r.regular() {
		err := unix.Flock(int(r.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		r.shared = errors.Is(err, unix.EWOULDBLOCK)
	}
}

// Close closes the file.
func (r *Reader) Close() error {
	if r.close != nil {
		r.close()
	}
	if r.name == "-" {
		return nil
	}
	return r.file.Close()
}

// Size is the length of the file; 0 if it is not known.
func (r *Reader) Size() int64 {
	if !r.regular() {
		return 0
	}
	return r.info.Size()
}

// Done is how many bytes of the file were read.
func (r *Reader) Done() int64 { return r.read.Load() }

// A counter counts what is read.
type counter struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// Imported is how much of a file a server has imported.
type Imported struct {
	Server        string `json:"server"`
	ReplaceTopics bool   `json:"replace_topics"`
	Lines         int64  `json:"lines"`
	// Refused is how many of the lines were not imported, and Reasons says why of the first ones.
	Refused int64                `json:"refused"`
	Reasons []client.ImportError `json:"reasons,omitempty"`
}

// noted is an Imported, and of which state of the file it is.
type noted struct {
	Imported Imported  `json:"imported"`
	Size     int64     `json:"size"`
	Time     time.Time `json:"modified"`
}

// Imported returns how much of the file an interrupted import into a server has done. Where one was
// interrupted that was another import, or is still going on, the import begins anew, and anew says
// why.
func (r *Reader) Imported(server string, replaceTopics bool) (done Imported, anew string) {
	done = Imported{Server: strings.TrimRight(server, "/"), ReplaceTopics: replaceTopics}
	switch {
	case !r.regular():
		return done, ""
	case r.shared:
		return done, errShared.Error()
	}
	name := r.name + importedSuffix
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return done, ""
	}
	var before noted
	if err == nil {
		err = json.Unmarshal(text, &before)
	}
	switch {
	case err != nil:
		return done, fmt.Sprintf("%s: %v", name, err)
	case before.Imported.Server != done.Server:
		return done, fmt.Sprintf("%s is about the server %q", name, before.Imported.Server)
	case before.Imported.ReplaceTopics && !replaceTopics:
		return done, name + " is about an import with --replace-topics"
	case replaceTopics && !before.Imported.ReplaceTopics:
		return done, name + " is about an import without --replace-topics"
	case before.Size != r.info.Size(), !before.Time.Equal(r.info.ModTime()):
		return done, r.name + " has changed since an import of it was interrupted"
	}
	return before.Imported, ""
}

// Note notes how much is imported. It does nothing for standard input, and returns an error where
// the file's directory cannot be written, or another import of the file notes how far it has come.
func (r *Reader) Note(done *Imported) error {
	switch {
	case !r.regular():
		return nil
	case r.shared:
		return errShared
	}
	return save(r.name+importedSuffix, noted{*done, r.info.Size(), r.info.ModTime()})
}

func (r *Reader) regular() bool { return r.info != nil && r.info.Mode().IsRegular() }

// Forget removes what Note has written.
func (r *Reader) Forget() error {
	if !r.regular() || r.shared {
		return nil
	}
	err := os.Remove(r.name + importedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
