package exportfile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"github.com/goccy/go-json"
	"github.com/klauspost/compress/zstd"
)

const importedSuffix = ".imported"

// A Reader reads an export, compressed or not.
type Reader struct {
	io.Reader
	name  string
	file  *os.File
	info  fs.FileInfo
	read  atomic.Int64 // bytes of the file
	close func()
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
	if r.info == nil || !r.info.Mode().IsRegular() {
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

// imported is how much of a file a server has imported.
type imported struct {
	Server string    `json:"server"`
	Size   int64     `json:"size"`     // of the file
	Time   time.Time `json:"modified"` // of the file
	Lines  int64     `json:"lines"`
}

// Imported returns how many lines at the beginning of the file an interrupted import has brought to
// a server.
func (r *Reader) Imported(server string) int64 {
	var d imported
	text, err := os.ReadFile(r.name + importedSuffix)
	if err != nil || json.Unmarshal(text, &d) != nil {
		return 0
	}
	if r.info == nil || d.Server != server || d.Size != r.info.Size() || !d.Time.Equal(r.info.ModTime()) {
		return 0
	}
	return d.Lines
}

// Note notes how many lines a server has imported. It does nothing for standard input, and returns
// an error where the file's directory cannot be written.
func (r *Reader) Note(server string, lines int64) error {
	if r.info == nil || !r.info.Mode().IsRegular() {
		return nil
	}
	return save(r.name+importedSuffix, imported{server, r.info.Size(), r.info.ModTime(), lines})
}

// Forget removes what Note has written.
func (r *Reader) Forget() error {
	err := os.Remove(r.name + importedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
