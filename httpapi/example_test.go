package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A program that embeds Lapse serves the API and its pages below a path of its own server.
func Example() {
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(context.Background(), memledger.New(), tasks.Config{Log: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer scheduler.Close(context.Background())
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Prefix: "/lapse", Log: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer api.Close()

	mux := http.NewServeMux()
	mux.Handle("/lapse/", api)
	mux.HandleFunc("/shop", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the shop") })

	// A program that other machines reach sets the handler of api.HTTPServer(), which has limits.
	server := httptest.NewServer(mux)
	defer server.Close()

	task := strings.NewReader(`{"id":"order-42", "topic":"order.unpaid", "delay":"30m"}`)
	answer, err := http.Post(server.URL+"/lapse/v1/tasks", "application/json", task)
	if err != nil {
		fmt.Println(err)
		return
	}
	answer.Body.Close()
	fmt.Println(answer.StatusCode, answer.Header.Get("Location"))

	answer, err = http.Get(server.URL + "/shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	fmt.Print(string(text))
	// Output:
	// 201 /lapse/v1/tasks/order-42
	// the shop
}
