// Command example is Lapse with one more way of delivery: topics of its server may choose
// {"kind": "kafka", "topic": "orders.expired"}. KAFKA_BROKERS says where brokers are,
// host:port, several separated by commas. Everything else is as of the command lapse.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/lapsehq/lapse/adapters/kafka"
	"github.com/lapsehq/lapse/cli"
)

func main() { os.Exit(run()) }

func run() int {
	var cfg kafka.Config
	if brokers := os.Getenv("KAFKA_BROKERS"); brokers != "" {
		cfg.Brokers = strings.Split(brokers, ",")
	}
	way, err := kafka.New(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "KAFKA_BROKERS:", err)
		return 2
	}
	defer way.Close()
	return cli.Main(os.Args[1:], way)
}
