package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Open opens the journal of a directory, or makes one, if none has to exist. The caller then calls
// Replay.
func Open(o Options, exists bool) (*Journal, error) {
	j := &Journal{Options: o, oldest: 1}
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		if !strings.HasPrefix(name, Prefix) {
			continue
		}
		file, err := o.FS.OpenReadWrite(o.FS.PathJoin(o.Dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			return nil, errors.Join(err, j.Close())
		}
		j.slots = append(j.slots, &slot{file: file, name: name})
	}
	if _, err = rand.Read(j.salt[:]); err == nil { // unless an opening has another
		err = j.order()
	}
	if err == nil && exists && j.last == 0 {
		err = fmt.Errorf("%w: no file %s* has a segment", ErrTorn, Prefix)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// order reads the openings, and sees that no segment is missing.
func (j *Journal) order() error {
	for _, s := range j.slots {
		b := make([]byte, openingLen)
		if n, err := s.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			return err
		} else if h, ok := headerOf(b[:n], salt{}); ok && h.end == openingLen {
			s.segment = h.segment
			copy(j.salt[:], b[HeaderLen+8:])
			j.last = max(j.last, s.segment)
			j.oldest = max(j.oldest, binary.LittleEndian.Uint64(b[HeaderLen:]))
		}
	}
	for segment := j.oldest; segment <= j.last; segment++ {
		s := j.slotOf(segment)
		if s == nil {
			return fmt.Errorf("%w: segment %d of %d to %d is missing", ErrTorn, segment, j.oldest, j.last)
		}
		s.live = true
	}
	for _, s := range j.slots {
		if s.segment != 0 {
			continue
		}
		// Its opening was torn before it had frames, or is damaged.
		b, err := j.content(s)
		if err != nil {
			return err
		}
		if hasFrame(b, j.salt, func(h header) bool { return h.segment > j.last }) {
			return fmt.Errorf("%w: the beginning of %s is damaged", ErrTorn, s.name)
		}
	}
	return nil
}

// Replay visits the frames of all segments that are not free, in their order. After it they are
// closed.
func (j *Journal) Replay(visit func(at Place, frame []byte) error) error {
	for _, segment := range j.Closed() {
		s, b, err := j.contentOf(segment)
		if err != nil {
			return err
		}
		opening, _ := headerOf(b, salt{})
		if j.number != 0 && opening.number != j.number+1 {
			return fmt.Errorf("%w: %s begins with frame %d, the segment before it ended with %d", ErrTorn, s.name, opening.number, j.number)
		}
		j.number = opening.number
		if segment == j.last {
			if err := j.settle(s, b); err != nil {
				return err
			}
		}
		s.end, err = j.walk(segment, b, func(at Place, h header, frame []byte) error {
			if j.number++; h.number != j.number {
				return fmt.Errorf("%w: %s has frame %d at byte %d, want %d", ErrTorn, s.name, h.number, at.Offset, j.number)
			}
			return visit(at, frame)
		})
		if err != nil {
			return err
		}
		if hasFrame(b[min(s.end, len(b)):], j.salt, func(h header) bool { return h.segment == segment && h.number > j.number }) {
			return fmt.Errorf("%w: %s is damaged at byte %d", ErrTorn, s.name, s.end)
		}
	}
	return nil
}

// settle makes the last frame durable. It may have been written and not synced, or its sync may
// have failed: then a power cut would undo it, but not all of what the owner has made of it. A
// second sync does not make good for a failed one, only another write does.
func (j *Journal) settle(s *slot, b []byte) error {
	var last []byte
	var at int64
	if _, err := j.walk(s.segment, b, func(place Place, _ header, frame []byte) error {
		last, at = frame, int64(place.Offset)
		return nil
	}); err != nil || last == nil {
		return err
	}
	if _, err := s.file.WriteAt(last, at); err != nil {
		return err
	}
	return s.file.Sync()
}

// Each visits the frames of a closed segment.
func (j *Journal) Each(segment uint64, visit func(at Place, frame []byte) error) error {
	s, b, err := j.contentOf(segment)
	if err != nil {
		return err
	}
	end, err := j.walk(segment, b, func(at Place, _ header, frame []byte) error { return visit(at, frame) })
	if err == nil && end != s.end {
		err = fmt.Errorf("%w: %s is damaged at byte %d", ErrTorn, s.name, end)
	}
	return err
}

// walk visits the frames in the content of a segment up to the first broken one, and returns where
// that is.
func (j *Journal) walk(segment uint64, b []byte, visit func(at Place, h header, frame []byte) error) (end int, err error) {
	for end = openingLen; ; {
		h, ok := headerOf(b[min(end, len(b)):], j.salt)
		if !ok || h.segment != segment {
			return end, nil
		}
		if err := visit(Place{segment, end}, h, b[end:end+h.end]); err != nil {
			return end, err
		}
		end = padded(end + h.end)
	}
}

// Read fills b with what is at an offset of a segment. The caller holds the journal: see Hold.
func (j *Journal) Read(segment uint64, offset int, b []byte) error {
	j.mu.Lock()
	s := j.slotOf(segment)
	j.mu.Unlock()
	_, err := s.file.ReadAt(b, int64(offset))
	return err
}

// contentOf reads the file that has a segment.
func (j *Journal) contentOf(segment uint64) (*slot, []byte, error) {
	j.mu.Lock()
	s := j.slotOf(segment)
	j.mu.Unlock()
	b, err := j.content(s)
	return s, b, err
}

// content reads a file.
func (j *Journal) content(s *slot) ([]byte, error) {
	info, err := s.file.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, info.Size())
	n, err := s.file.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// Copy copies the durable frames of all segments that the newest opening takes for needed into
// another directory. The caller holds the journal.
func (j *Journal) Copy(dir string) error {
	j.mu.Lock()
	var from []slot
	for _, s := range j.slots {
		if s.segment >= j.oldest {
			from = append(from, *s)
		}
	}
	defer j.holdLocked(j.oldest)()
	j.mu.Unlock()
	for _, s := range from {
		b := make([]byte, s.end) // which may lack the padding of the last frame
		if _, err := s.file.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := j.write(j.FS.PathJoin(dir, s.name), b); err != nil {
			return err
		}
	}
	return nil
}

func (j *Journal) write(name string, content []byte) error {
	f, err := j.FS.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// make makes a file.
func (j *Journal) make() (*slot, error) {
	s := &slot{name: j.unusedName()}
	path := j.FS.PathJoin(j.Dir, s.name)
	f, err := j.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	if !allocate(f, j.Size) {
		_, err = f.Write(make([]byte, j.Size))
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	dir, err := j.FS.OpenDir(j.Dir)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return nil, err
	}
	s.file, err = j.FS.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	return s, err
}

func (j *Journal) unusedName() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	for n := 0; ; n++ {
		name := fmt.Sprintf("%s%d", Prefix, n)
		if !slices.ContainsFunc(j.slots, func(s *slot) bool { return s.name == name }) {
			return name
		}
	}
}

// Close closes the files.
func (j *Journal) Close() (err error) {
	j.making.Lock()
	defer j.making.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.slots {
		err = errors.Join(err, s.file.Close())
	}
	j.slots = nil
	return err
}
