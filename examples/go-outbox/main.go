// Command go-outbox places two orders with their deadlines in transactions of SQLite. One is paid,
// the other one is not.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"github.com/lapsehq/lapse/client"
	_ "modernc.org/sqlite"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "go-outbox-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)")
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return err
	}
	c, err := client.New(client.Options{URL: env("LAPSE_URL", "http://127.0.0.1:7480")})
	if err != nil {
		return err
	}
	defer c.Close()

	// Both are placed before the relay runs, as if it, or Lapse, were down. Nothing is lost.
	forgetful, prompt := Order{42}, Order{41}
	for _, o := range []Order{forgetful, prompt} {
		if err := Place(ctx, db, o, time.Now().Add(2*time.Second)); err != nil {
			return err
		}
		fmt.Printf("order %d is placed\n", o.ID)
	}

	cancelled := make(chan Order, 1)
	w, err := unpaid.Worker(c, func(ctx context.Context, o Order, _ *client.Delivery) error {
		done, err := CancelUnpaid(ctx, db, o)
		if done {
			cancelled <- o
		}
		return err // nil acknowledges, an error: again later
	}, client.WorkerOptions{})
	if err != nil {
		return err
	}
	background, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	running.Go(func() { Relay(background, db, c) })
	running.Go(func() { _ = w.Run(background) })

	if err := Pay(ctx, db, prompt); err != nil {
		return err
	}
	select {
	case o := <-cancelled:
		fmt.Printf("order %d was not paid in time\n", o.ID)
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, o := range []Order{prompt, forgetful} {
		state, err := StateOf(ctx, db, o)
		if err != nil {
			return err
		}
		fmt.Printf("order %d is %s\n", o.ID, state)
	}
	return nil
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
