package identity

import "testing"

func TestFate(t *testing.T) {
	me := Self()
	if me.Started == 0 {
		t.Skip("this platform has no /proc")
	}
	for name, c := range map[string]struct {
		change func(p *Process)
		want   Fate
	}{
		"itself":                {func(*Process) {}, Alive},
		"its id, used again":    {func(p *Process) { p.Started-- }, Gone},
		"no such process":       {func(p *Process) { p.PID = 1 << 30 }, Gone},
		"before a reboot":       {func(p *Process) { p.Boot = "x" }, FateUnknown},
		"in another container":  {func(p *Process) { p.Space = "x" }, FateUnknown},
		"of another platform":   {func(p *Process) { p.Started = 0 }, FateUnknown},
		"nothing known of boot": {func(p *Process) { p.Boot = "" }, FateUnknown},
	} {
		other := me
		c.change(&other)
		if got := me.FateOf(other); got != c.want {
			t.Errorf("%s: fate %d, want %d", name, got, c.want)
		}
	}
}
