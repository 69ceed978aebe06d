package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/metrics"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A program that embeds Lapse mounts the API, its pages and the metrics below a path of its own
// server, with the limits that Lapse has on callers.
func Example_mount() {
	if err := mount(); err != nil {
		fmt.Println(err)
	}
	// Output: lapse_ready 1
}

func mount() error {
	ctx, quiet := context.Background(), slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(ctx, memledger.New(), tasks.Config{Log: quiet})
	if err != nil {
		return err
	}
	defer func() { _ = scheduler.Close(ctx) }() // last

	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Prefix: "/lapse", Metrics: metrics.Handler, Log: quiet})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/lapse/", api)
	mux.HandleFunc("/shop", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the shop") })
	server := api.HTTPServer() // with limits on what callers can delay
	server.Handler = mux

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	url := "http://" + listener.Addr().String()

	answer, err := http.Get(url + "/lapse/metrics")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "lapse_ready ") {
			fmt.Println(lines.Text())
		}
	}

	api.Close()                                  // long-polls end
	if err := server.Shutdown(ctx); err != nil { // requests end
		return err
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
