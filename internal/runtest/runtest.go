// Package runtest sets how the tests of a package run. It is called by TestMain, and owns nothing.
// Nothing can fail. No program may import it.
package runtest

import (
	"flag"
	"strconv"
)

// AtOnce sets how many parallel tests run at the same time, unless the flag -parallel says it. It
// is for tests that wait more than they compute: for Redis, and for what nodes do every second.
func AtOnce(tests int) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		_ = flag.Set("test.parallel", strconv.Itoa(tests))
	}
}
