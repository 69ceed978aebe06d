// Package service speaks to the service manager that has started this process: systemd, through the
// socket that NOTIFY_SOCKET names. It tells when the server answers and when it stops, and feeds
// the watchdog while the scheduler moves.
//
// It owns one goroutine, which asks the scheduler whether it moves. It may call package tasks and
// the socket. What can fail is the socket: that is logged once, and the server goes on.
package service
