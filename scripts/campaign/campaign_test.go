//go:build fault

package campaign

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

func TestMain(m *testing.M) {
	os.Exit(rig.WithProgram(func(path string) int {
		binary = path
		return m.Run()
	}))
}

// unshaken are the faults of `make fault`: those that Redis survives with all that it has
// confirmed.
var unshaken = []string{"kill", "stop", "cut", "halfopen", "drain", "handover", "restart", "roll", "spool", "down", "late", "full"}

func fromEnvironment(t *testing.T) options {
	o := options{nodes: 3, tasks: 700, duration: 12 * time.Second, failoverAfter: 1500 * time.Millisecond, rate: 120}
	o.seeds = []uint64{45} // a restart beside all of them, a cut while Redis is down
	fail := func(name, text string, err error) {
		t.Fatalf("%s=%q: %v", name, text, err)
	}
	set := func(name string, parse func(text string) error) {
		if text := os.Getenv(name); text != "" {
			if err := parse(text); err != nil {
				fail(name, text, err)
			}
		}
	}
	number := func(into *int, least int) func(string) error {
		return func(text string) (err error) {
			if *into, err = strconv.Atoi(text); err == nil && *into < least {
				err = fmt.Errorf("must be at least %d", least)
			}
			return err
		}
	}
	length := func(into *time.Duration) func(string) error {
		return func(text string) (err error) {
			*into, err = time.ParseDuration(text)
			return err
		}
	}
	set("LAPSE_SEEDS", func(text string) (err error) {
		o.seeds, err = seeds(text)
		return err
	})
	set("LAPSE_NODES", number(&o.nodes, 1))
	set("LAPSE_TASKS", number(&o.tasks, 1))
	set("LAPSE_STOCK", number(&o.stock, 0))
	set("LAPSE_RATE", number(&o.rate, 1))
	set("LAPSE_DURATION", length(&o.duration))
	set("LAPSE_FAILOVER_AFTER", length(&o.failoverAfter))
	// A second import at another node may deliver again what has finished.
	o.faults, o.features = unshaken, slices.DeleteFunc(allFeatures(), func(name string) bool { return name == "import" })
	set("LAPSE_FAULTS", func(text string) (err error) {
		o.faults, err = among(allFaults(), text)
		return err
	})
	set("LAPSE_FEATURES", func(text string) (err error) {
		o.features, err = among(allFeatures(), text)
		return err
	})
	o.job = os.Getenv("LAPSE_JOB") != ""
	if o.dir = os.Getenv("LAPSE_DIR"); o.dir == "" {
		o.dir = t.ArtifactDir()
	}
	return o
}

// seeds reads a list such as 1-20,33.
func seeds(text string) (list []uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		from, to, ok := strings.Cut(part, "-")
		if !ok {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 64)
		if err != nil {
			return nil, err
		}
		last, err := strconv.ParseUint(to, 10, 64)
		if err != nil {
			return nil, err
		}
		if last < first || last-first >= 10_000 {
			return nil, fmt.Errorf("%s is no range of at most 10,000 seeds", part)
		}
		for seed := first; seed <= last; seed++ {
			list = append(list, seed)
		}
	}
	return list, nil
}

// among reads a list of names, all, or none.
func among(all []string, text string) (list []string, err error) {
	switch text {
	case "none":
		return nil, nil
	case "all":
		return all, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("%q is none of %s", name, strings.Join(all, ", "))
		}
		list = append(list, name)
	}
	return list, nil
}

// TestCampaign runs each seed, and judges it. `make campaign` lists its settings.
func TestCampaign(t *testing.T) {
	o := fromEnvironment(t)
	t.Logf("what is noted is kept in %s", o.dir)
	all := newMatrix()
	t.Run("seeds", func(t *testing.T) {
		for _, seed := range o.seeds {
			t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				t.Parallel()
				campaign(t, o, seed, all)
			})
		}
	})
	if len(o.faults) == 0 || o.job {
		return
	}
	t.Logf("uses of each feature during each fault, and broken promises behind an exclamation mark:%s", all.table(o.features, o.faults))
	if empty := all.empty(o.features, o.faults); len(o.seeds) >= block && len(empty) > 0 {
		t.Errorf("never tried: %s", strings.Join(empty, "; "))
	}
}
