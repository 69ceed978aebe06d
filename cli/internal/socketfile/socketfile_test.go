package socketfile

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// left makes a socket file on which no process listens.
func left(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// Whatever is no abandoned socket is left as it is.
func TestOtherFilesAreLeft(t *testing.T) {
	dir, err := os.MkdirTemp("", "lapse") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(in("file"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(in("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	left(t, in("socket"))
	for link, to := range map[string]string{"tofile": "file", "tosocket": "socket", "tonothing": "nothing"} {
		if err := os.Symlink(to, in(link)); err != nil {
			t.Fatal(err)
		}
	}
	living, err := Listen(in("living"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	for name, want := range map[string]error{
		"file": ErrNoSocket, "dir": ErrNoSocket, "tofile": ErrNoSocket, "tosocket": ErrNoSocket, "tonothing": ErrNoSocket, "living": syscall.EADDRINUSE,
	} {
		before, err := os.Lstat(in(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(in(name), 0o600); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if after, err := os.Lstat(in(name)); err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
			t.Errorf("%s has changed: %v", name, err)
		}
	}
	if text, err := os.ReadFile(in("file")); string(text) != "precious" {
		t.Errorf("the file has %q: %v", text, err)
	}
}

// A listener that is closed removes its own file, and not one that has taken the place.
func TestCloseRemovesItsOwnFile(t *testing.T) {
	dir, err := os.MkdirTemp("", "lapse")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	left(t, path)
	first, err := Listen(path, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the mode is %v: %v", info.Mode(), err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if err := Abandoned(path); !errors.Is(err, ErrInUse) {
		t.Errorf("after the first was closed: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
}
