package cli

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/cli/internal/commandline"
)

// warnOfVariables logs variables in the environment that look like settings and are none: a
// misspelt one would silently leave its default.
func warnOfVariables(commands *commandline.Command, environment []string, log *slog.Logger) {
	known := map[string]bool{"LAPSE_TOKEN": true} // see tokenFrom
	for _, c := range commands.Leaves() {
		for _, f := range c.Flags {
			known[f.Env] = true
		}
	}
	var unknown []string
	for _, entry := range environment {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "LAPSE_") && !known[name] && !ofCluster(name) && !strings.HasPrefix(name, "LAPSE_TASK_") {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		log.Warn("unknown variables in the environment", "variables", strings.Join(unknown, " "))
	}
}

// ofCluster reports whether a variable is one that Kubernetes sets for a service whose name begins
// with lapse.
func ofCluster(name string) bool {
	return strings.HasSuffix(name, "_PORT") || strings.Contains(name, "_PORT_") ||
		strings.HasSuffix(name, "_SERVICE_HOST") || strings.Contains(name, "_SERVICE_PORT")
}
