package diskledger

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A fence is between one instance of Pebble and the files. It is open until the first write of any
// kind fails. From then on every write does nothing and succeeds. So Pebble never gets the errors
// on which it would end the process, stall or spin, and can be closed cleanly. The owner of the
// fence must call broken after every answer of that instance, and use no answer once broken.
//
// Removing files may fail without consequences: Pebble tries again at its next
// start.
//
// What is written below a directory that leaveOut names is not fenced: it is no part of the store.
type fence struct {
	vfs.FS
	apart   atomic.Pointer[string]
	cause   atomic.Pointer[error] // why it was cut; nil while it is open
	tripped chan struct{}         // closed once it was cut
}

func newFence(fs vfs.FS) *fence {
	return &fence{FS: fs, tripped: make(chan struct{})}
}

// broken returns why answers of the instance must not be used, or nil.
func (f *fence) broken() error {
	if p := f.cause.Load(); p != nil {
		return *p
	}
	return nil
}

// cut closes the fence for good.
func (f *fence) cut(err error) {
	if f.cause.CompareAndSwap(nil, &err) {
		close(f.tripped)
	}
}

// leaveOut names a directory below which nothing is fenced, with itself; "": none.
func (f *fence) leaveOut(dir string) {
	if dir == "" {
		f.apart.Store(nil)
		return
	}
	f.apart.Store(&dir)
}

// isApart reports whether a file is not fenced.
func (f *fence) isApart(name string) bool {
	dir := f.apart.Load()
	return dir != nil && (name == *dir || strings.HasPrefix(name, *dir+string(filepath.Separator)))
}

// write does one writing operation, unless the fence is cut.
func (f *fence) write(do func() error) {
	if f.broken() != nil {
		return
	}
	if err := do(); err != nil {
		f.cut(err)
	}
}

// open does one operation that makes a file for writing. Behind a cut fence it returns a file that
// drops all writes.
func (f *fence) open(do func() (vfs.File, error)) (vfs.File, error) {
	var file vfs.File = void{}
	f.write(func() error {
		made, err := do()
		if err == nil {
			file = made
		}
		return err
	})
	return &fencedFile{File: file, fence: f}, nil
}

func (f *fence) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if f.isApart(name) {
		return f.FS.Create(name, category)
	}
	return f.open(func() (vfs.File, error) { return f.FS.Create(name, category) })
}

func (f *fence) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if f.isApart(name) {
		return f.FS.OpenReadWrite(name, category, opts...)
	}
	return f.open(func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) })
}

func (f *fence) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, category) })
}

// OpenDir opens a directory for syncing.
func (f *fence) OpenDir(name string) (vfs.File, error) {
	if f.isApart(name) {
		return f.FS.OpenDir(name)
	}
	return f.open(func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f *fence) Link(oldname, newname string) error {
	if f.isApart(newname) {
		return f.FS.Link(oldname, newname)
	}
	f.write(func() error { return f.FS.Link(oldname, newname) })
	return nil
}

func (f *fence) Rename(oldname, newname string) error {
	if f.isApart(newname) {
		return f.FS.Rename(oldname, newname)
	}
	f.write(func() error { return f.FS.Rename(oldname, newname) })
	return nil
}

func (f *fence) MkdirAll(dir string, perm os.FileMode) error {
	if f.isApart(dir) {
		return f.FS.MkdirAll(dir, perm)
	}
	f.write(func() error { return f.FS.MkdirAll(dir, perm) })
	return nil
}

func (f *fence) Remove(name string) error {
	if f.broken() != nil {
		return nil
	}
	return f.FS.Remove(name)
}

func (f *fence) RemoveAll(name string) error {
	if f.broken() != nil {
		return nil
	}
	return f.FS.RemoveAll(name)
}

func (f *fence) Unwrap() vfs.FS { return f.FS }

// A fencedFile is a file open for writing, or a directory open for syncing.
type fencedFile struct {
	vfs.File
	fence *fence
}

func (f *fencedFile) Write(p []byte) (int, error) {
	n := len(p)
	f.fence.write(func() error {
		_, err := f.File.Write(p)
		return err
	})
	return n, nil
}

func (f *fencedFile) WriteAt(p []byte, at int64) (int, error) {
	n := len(p)
	f.fence.write(func() error {
		_, err := f.File.WriteAt(p, at)
		return err
	})
	return n, nil
}

// Preallocate is a hint, which some file systems refuse.
func (f *fencedFile) Preallocate(offset, length int64) error {
	if f.fence.broken() != nil {
		return nil
	}
	return f.File.Preallocate(offset, length)
}

func (f *fencedFile) Sync() error {
	f.fence.write(f.File.Sync)
	return nil
}

func (f *fencedFile) SyncData() error {
	f.fence.write(f.File.SyncData)
	return nil
}

func (f *fencedFile) SyncTo(length int64) (full bool, err error) {
	f.fence.write(func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, nil
}

// Close releases the file even behind a cut fence.
func (f *fencedFile) Close() error {
	if err := f.File.Close(); err != nil {
		f.fence.cut(err)
	}
	return nil
}

// A void is a file that could not be made: it drops writes and is empty.
type void struct{}

func (void) Close() error                           { return nil }
func (void) Read([]byte) (int, error)               { return 0, io.EOF }
func (void) ReadAt([]byte, int64) (int, error)      { return 0, io.EOF }
func (void) Write(p []byte) (int, error)            { return len(p), nil }
func (void) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (void) Preallocate(int64, int64) error         { return nil }
func (void) Sync() error                            { return nil }
func (void) SyncData() error                        { return nil }
func (void) SyncTo(int64) (bool, error)             { return true, nil }
func (void) Prefetch(int64, int64) error            { return nil }
func (void) Fd() uintptr                            { return vfs.InvalidFd }
func (void) Stat() (vfs.FileInfo, error)            { return voidInfo{}, nil }

// A voidInfo describes a void.
type voidInfo struct{}

func (voidInfo) Name() string           { return "" }
func (voidInfo) Size() int64            { return 0 }
func (voidInfo) Mode() fs.FileMode      { return 0 }
func (voidInfo) ModTime() time.Time     { return time.Time{} }
func (voidInfo) IsDir() bool            { return false }
func (voidInfo) Sys() any               { return nil }
func (voidInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }
