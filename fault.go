//go:build fault && unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// A build with the tag fault panics at SIGUSR1, where nothing recovers: so a test sees what
// a service manager makes of a defect.
func init() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		<-asked
		panic("fault: a panic was asked for")
	}()
}
