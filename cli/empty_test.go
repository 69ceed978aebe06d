package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/cli/internal/commandline"
)

// The flags for which an empty text means something, written down a second time.
var mayBeEmpty = []string{
	"lapse serve --resp-notify",  // no events, as notify-keyspace-events of Redis
	"lapse doctor --resp-notify", // the same settings
	"lapse topics set --on-dead", // takes the follow-up away
}

// An empty text on the line is an error of each argument and each flag of each command: a filter
// that it took away would select everything.
func TestEmptyTexts(t *testing.T) {
	tried := 0
	for i := range commands(&serve{}).Leaves() {
		for _, isArg := range []bool{true, false} {
			for j := 0; ; j++ {
				root := commands(&serve{}) // anew: a line stays in its parameters
				c := root.Leaves()[i]
				all := c.Flags
				if isArg {
					all = c.Args
				}
				if j == len(all) {
					break
				}
				p, words := all[j], strings.Fields(c.Path())[1:]
				if !isArg {
					words = append(words, "--"+p.Name+"=")
				}
				for _, a := range c.Args {
					if a == p {
						words = append(words, "")
						break
					}
					words = append(words, "x")
				}
				tried++
				refused := false
				line, err := root.Parse(words)
				if err != nil {
					t.Errorf("%q: %v", words, err)
					continue
				}
				_ = line.Fill(func(of *commandline.Param, err error) bool {
					refused = refused || of.Name == p.Name && err.Error() == "must not be empty"
					return true
				})
				if want := !slices.Contains(mayBeEmpty, c.Path()+" --"+p.Name); refused != want {
					t.Errorf("%q: refused: %v, want %v", words, refused, want)
				}
			}
		}
	}
	if tried < 300 {
		t.Errorf("%d arguments and flags were tried", tried)
	}
}

// A filter whose variable has no value cancels nothing.
func TestEmptyFilterChangesNothing(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"schedule", "orders", "--id", "a", "--delay", "1h", "--group", "customer-7"}, "a is scheduled")
	for _, args := range [][]string{
		{"cancel", "--topic", "orders", "--group", ""}, {"cancel", "--topic=orders", "--id-prefix="}, {"cancel", "--topic", "orders", "--state", ""},
		{"hold", "--topic", "orders", "--group", ""}, {"fire", "--topic", "orders", "--group", ""}, {"cancel", "a", ""},
		{"reschedule", "--topic", "orders", "--delay", "2h", "--group", ""}, {"dead", "delete", "orders", "--group", ""},
	} {
		s.fails(exitUsage, args, "must not be empty")
	}
	if got := s.object("get", "a"); got["state"] != "pending" || fmt.Sprint(got["revision"]) != "1" {
		t.Errorf("%v", got)
	}
}
