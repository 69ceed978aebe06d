// Command lapse delivers tasks when they are due. See package cli.
package main

import (
	"os"

	"github.com/lapsehq/lapse/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
