package respapi

import "golang.org/x/sys/unix"

// tcpClosed is the state of a connection that was reset.
const tcpClosed = 7

// socketState returns how many bytes a socket has that the other machine has not confirmed, for how
// many more that has room, 0 if it does not tell, and whether it has reset the connection. On a
// socket of this machine, unconfirmed is what the other process has not read.
func socketState(fd uintptr) (unconfirmed, room int64, reset bool) {
	n, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
	if err != nil {
		return 0, 0, false
	}
	if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
		room, reset = int64(info.Snd_wnd), info.State == tcpClosed
	}
	return int64(n), room, reset
}
