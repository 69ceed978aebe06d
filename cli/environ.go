package cli

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// warnOfVariables logs variables in the environment that look like settings and are none: a
// misspelt one would silently leave its default.
func warnOfVariables(app *kong.Application, environment []string, log *slog.Logger) {
	known := map[string]bool{"LAPSE_TOKEN": true} // see tokenFrom
	var note func(n *kong.Node)
	note = func(n *kong.Node) {
		for _, flag := range n.Flags {
			for _, name := range flag.Envs {
				known[name] = true
			}
		}
		for _, child := range n.Children {
			note(child)
		}
	}
	note(app.Node)
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
