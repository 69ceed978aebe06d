package ledgertest

import (
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
)

// testCrashAtEveryStep ends the process right before and right after each kind of batch was carried
// out, without its answer, and checks what is left.
func testCrashAtEveryStep(f *fixture) {
	steps := []struct {
		name string
		to   recovery.Spot
	}{
		{"create", pending(noon)},
		{"rewrite", pending(noon)},
		{"move", pending(noon + 1)},
		{"bury", dead("topic", noon+2)},
		{"requeue", pending(noon + 3)},
		{"bury", dead("other", noon+4)},
		{"remove", recovery.Spot{}},
		{"create", pending(noon + 5)},
		{"delete", recovery.Spot{}},
	}
	for n, step := range steps {
		for _, after := range []bool{false, true} {
			changes := []recovery.Change{
				f.change("one", step.to, fmt.Sprint(step.name, n)),
				f.change("two", step.to, fmt.Sprint(step.name, n)),
			}
			faulty := Wrap(f.ledger)
			faulty.Inject(Fault{Op: Apply, Times: -1, After: after})
			for shard := range f.terms.Shards {
				var b recovery.Batch
				for _, c := range changes {
					if f.terms.ShardOf(c.ID) == shard {
						b.Add(c)
					}
				}
				if b.Len() == 0 {
					continue
				}
				if err := faulty.Apply(f.ctx(), shard, &b); !errors.Is(err, ErrInjected) {
					f.Fatalf("%s: %v", step.name, err)
				}
			}
			if after {
				for _, c := range changes {
					f.model.apply(c)
				}
			}
			f.crash()
			if diff := f.model.diff(f.read(f.ledger)); diff != "" {
				f.Fatalf("after a crash at %s (carried out: %v):\n%s", step.name, after, diff)
			}
		}
	}
}
