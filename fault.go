//go:build fault && unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// A build with the tag fault panics at SIGUSR1, where no recover catches it: a test so sees how a
// service manager treats a defect.
func init() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		<-asked
		panic("fault: a panic was asked for")
	}()
}
