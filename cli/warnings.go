package cli

import (
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/cli/internal/commandline"
)

// warnOfMemory warns if tasks may take more memory than there is: then the kernel ends the process
// before a schedule is refused.
func (s *settings) warnOfMemory(log *slog.Logger) {
	if has := memoryHere(); has > 0 && s.MaxBytes > has/2 {
		log.Warn("max_bytes is more than half of the memory here: set max_bytes and max_pending to what fits",
			"max_bytes", s.MaxBytes, "memory", has)
	}
}

// memoryLimit is how many bytes this process may use, as far as Linux reports it: the memory of the
// machine, or less in a container. 0 means that the limit is not known.
func memoryLimit(machine int64, cgroup string) int64 {
	text, err := os.ReadFile(cgroup)
	if err != nil {
		return machine
	}
	most, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || machine > 0 && machine < most { // "max" is no number
		return machine
	}
	return most
}

// warnOfModes logs files with secrets that users other than their owner can read or write.
func (s *settings) warnOfModes(log *slog.Logger) {
	for _, file := range []string{s.TokenFile, s.WebhookSecretFile, s.TLSKey} {
		if file == "" {
			continue
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
			log.Warn("other users can access a file with secrets; chmod 600 prevents that", "file", file, "mode", info.Mode().Perm().String())
		}
	}
}

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
