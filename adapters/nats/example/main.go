// Command example is Lapse with one more way of delivery: topics of its server may choose
// {"kind": "nats", "subject": "orders.expired"}. NATS_URL says where the NATS servers
// are, several separated by commas. Everything else is as of the command lapse.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/lapsehq/lapse/adapters/nats"
	"github.com/lapsehq/lapse/cli"
)

func main() { os.Exit(run()) }

func run() int {
	var cfg nats.Config
	if urls := os.Getenv("NATS_URL"); urls != "" {
		cfg.URLs = strings.Split(urls, ",")
	}
	way, err := nats.New(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "NATS_URL:", err)
		return 2
	}
	defer way.Close()
	return cli.Main(os.Args[1:], way)
}
