package respapi

import "golang.org/x/sys/unix"

// socketState returns how many bytes a socket has that the other machine has not confirmed, and for
// how many more that has room, 0 if it does not tell. On a socket of this machine, unconfirmed is
// what the other process has not read.
func socketState(fd uintptr) (unconfirmed, room int64) {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	if err != nil {
		return 0, 0
	}
	if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		room = int64(info.Snd_wnd)
	}
	return int64(n), room
}
