// Package socketfile listens on socket files. It replaces and removes a file only if that is a
// socket on which no process listens.
package socketfile

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// Errors of Abandoned.
var (
	// ErrNoSocket is returned for a file that is no socket, such as a symbolic link to one.
	ErrNoSocket = errors.New("the file there is no socket, and is left as it is")
	// ErrInUse is returned for a socket on which a process listens, or may listen.
	ErrInUse = fmt.Errorf("a process listens there: %w", syscall.EADDRINUSE)
)

// connectWithin bounds the connection by which Abandoned finds out whether a process listens.
const connectWithin = time.Second

// Abandoned returns nil if the file is a socket on which no process listens. Errors: ErrNoSocket,
// ErrInUse, or why the file cannot be looked at.
func Abandoned(path string) error {
	// A connection to a regular file is refused as well. It would also follow a symbolic link.
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return ErrNoSocket
	}
	conn, err := net.DialTimeout("unix", path, connectWithin)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return ErrInUse
	}
	return nil
}

// A listener removes its file when it is closed, unless another process has taken the place.
type listener struct{ *net.UnixListener }

// Listen listens on a socket file, which gets this mode. It replaces an abandoned one. Errors:
// those of Abandoned for a file that is there, and those of the system.
func Listen(path string, mode fs.FileMode) (net.Listener, error) {
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	u, err := net.ListenUnix("unix", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := Abandoned(path); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		u, err = net.ListenUnix("unix", addr)
	}
	if err != nil {
		return nil, err
	}
	u.SetUnlinkOnClose(false)
	l := listener{u}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("the mode of the socket file: %w", err), l.Close())
	}
	return l, nil
}

// Close implements net.Listener.
func (l listener) Close() error {
	if err := l.UnixListener.Close(); err != nil {
		return err
	}
	path := l.Addr().String()
	if Abandoned(path) != nil {
		return nil // another file has taken the place, or there is none
	}
	return os.Remove(path)
}
