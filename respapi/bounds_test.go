package respapi_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// Every command with a pattern refuses one that is too long, and so do those that name a channel.
func TestPatternsAreBounded(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	const most = 4096
	long, class := strings.Repeat("a", most+1), "*["+strings.Repeat("a", 1<<20)+"]"
	const refused = "-ERR the pattern must be at most 4096 bytes long"
	for _, pattern := range []string{long, class} {
		for _, c := range [][]string{
			{"KEYS", pattern}, {"SCAN", "0", "MATCH", pattern}, {"PSUBSCRIBE", "a", pattern}, {"PUBSUB", "CHANNELS", pattern},
			{"COMMAND", "LIST", "FILTERBY", "PATTERN", pattern}, {"CONFIG", "GET", "save", pattern},
		} {
			w.ask(refused, c...)
		}
	}
	w.ask(":0", "PUBSUB", "NUMPAT") // PSUBSCRIBE a was refused with the other one
	for _, c := range [][]string{{"SUBSCRIBE", "a", long}, {"PUBLISH", long, "m"}} {
		w.ask("-ERR the name of a channel must be at most 4096 bytes long", c...)
	}
	w.ask("*0", "KEYS", "*["+strings.Repeat("a", most-3)+"]")
	w.ask(":0", "PUBLISH", long[1:], "m")
	w.ask("*3 psubscribe "+long[1:]+" :1", "PSUBSCRIBE", long[1:])
}

// hard is a pattern that takes about as many steps as there can be for so many letters a.
func hard(letters int) string { return "*" + strings.Repeat("[ab]", letters/2) + "c*" }

// A pattern that takes long is matched where no event waits for it.
func TestPatternsDoNotHoldUpEvents(t *testing.T) {
	const patterns, channel = 40, 4096
	r := newRig(t, Config{}, tasks.Config{})
	slow, events, publish := r.dial(), r.dial(), r.dial()
	for i := range patterns {
		slow.command("PSUBSCRIBE", hard(1900+2*i))
		slow.answer()
	}
	events.ask("*3 subscribe __keyevent@0__:expired :1", "SUBSCRIBE", "__keyevent@0__:expired")
	answered := make(chan time.Time, 1)
	go func() {
		publish.command("PUBLISH", strings.Repeat("a", channel), "m")
		publish.answer()
		answered <- time.Now()
	}()
	r.fire("expired", "k")
	events.want("*3 message __keyevent@0__:expired k")
	if heard := time.Now(); heard.After(<-answered) {
		t.Error("the event came after the message was matched with all patterns")
	}
}

// KEYS ends when its client has left, within a page.
func TestKeysEndsWithItsClient(t *testing.T) {
	const keys, letters = 30_000, 500
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	for i := 0; i < keys; {
		command := []string{"MSET"}
		for range 1000 {
			command = append(command, strings.Repeat("a", letters)+strconv.Itoa(i), "v")
			i++
		}
		w.ask("+OK", command...)
	}
	gone := r.dial()
	gone.command("KEYS", hard(letters))
	gone.nc.Close()
	var done, failed int64
	waitFor(t, "KEYS has ended", func() bool {
		r.server.EachCommand(func(name string, d, f int64, _ tasks.Latency) {
			if name == "keys" {
				done, failed = d, f
			}
		})
		return done+failed > 0
	})
	if failed != 1 {
		t.Error("KEYS has gone on to its end")
	}
}
