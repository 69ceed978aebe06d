// Command example is Lapse with one more way of delivery: topics of its server may choose
// {"kind": "rabbitmq", "routing_key": "orders"}. AMQP_URL says where the RabbitMQ brokers
// are, several separated by spaces. Everything else is as of the command lapse.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/lapsehq/lapse/adapters/rabbitmq"
	"github.com/lapsehq/lapse/cli"
)

func main() { os.Exit(run()) }

func run() int {
	way, err := rabbitmq.New(rabbitmq.Config{URLs: strings.Fields(os.Getenv("AMQP_URL"))})
	if err != nil {
		fmt.Fprintln(os.Stderr, "AMQP_URL:", err)
		return 2
	}
	defer way.Close()
	return cli.Main(os.Args[1:], way)
}
