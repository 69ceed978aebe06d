package cli

import (
	"strings"
	"testing"
)

// Every command of the table runs.
func TestCommandsRun(t *testing.T) {
	for _, c := range commands(&serve{}).Leaves() {
		_, runs := c.Target.(runner)
		if _, calls := c.Target.(caller); runs == calls {
			t.Errorf("%s runs: %v, calls a server: %v", c.Path(), runs, calls)
		}
	}
}

// A wrong value ends a command before it does anything, whether or not it calls a server.
func TestWrongValues(t *testing.T) {
	for _, args := range []string{"token shop --scopes read --max-topics many", "token shop --scopes read --max-pending 0",
		"completion tcsh", "get a --timeout soon", "reserve x --wait soon", "schedule x --replace=perhaps"} {
		var out, errs screen
		code := run(t.Context(), strings.Fields(args), streams{&out, &errs})
		if code != exitUsage || out.String() != "" || strings.Count(errs.String(), "must ") != 1 {
			t.Errorf("%s: exit code %d: %s%s", args, code, out.String(), errs.String())
		}
	}
}

// A command reads no variables but its own.
func TestVariablesOfOthers(t *testing.T) {
	t.Setenv("LAPSE_TIMEOUT", "soon")
	t.Setenv("LAPSE_MAX_PENDING", "many")
	t.Setenv("LAPSE_CONFIG", "/no/such/file")
	for args, want := range map[string]int{"version": exitOK, "completion bash": exitOK, "token shop --scopes read": exitOK,
		"serve --print-config": exitUsage, "get a": exitUsage} {
		var out, errs screen
		code := run(t.Context(), strings.Fields(args), streams{&out, &errs})
		if code != want || strings.Count(errs.String(), "timeout:") > 1 {
			t.Errorf("%s: exit code %d: %s", args, code, errs.String())
		}
	}
}
