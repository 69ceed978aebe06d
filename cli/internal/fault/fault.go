//go:build fault && unix

package fault

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/lapsehq/lapse/tasks"
)

// A build with the tag fault has an observer that does not return any more after SIGUSR2. What the
// scheduler does next hangs: a test so sees what becomes of a hung server.
func init() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	hung := make(chan struct{})
	Observer = observerFunc(func() {
		select {
		case <-hung:
			select {}
		default:
		}
	})
	go func() {
		<-asked
		close(hung)
	}()
}

type observerFunc func()

func (f observerFunc) Observe(tasks.Event) { f() }
