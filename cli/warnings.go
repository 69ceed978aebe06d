package cli

import (
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	look "github.com/lapsehq/lapse/cli/internal/doctor"
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

// guardedFiles are the files of the settings that hold secrets, or decide who may do what. That of
// tokens has their digests, from which no token follows.
func (s *settings) guardedFiles() []look.Guarded {
	all := []look.Guarded{
		{Setting: "token-file", Path: s.TokenFile, Public: true}, {Setting: "webhook-secret-file", Path: s.WebhookSecretFile}, {Setting: "tls-key", Path: s.TLSKey},
		{Setting: "tls-cert", Path: s.TLSCert, Public: true}, {Setting: "tls-client-ca", Path: s.TLSClientCA, Public: true}, {Setting: "config", Path: fromHome(s.Config), Public: true},
	}
	return slices.DeleteFunc(all, func(g look.Guarded) bool { return g.Path == "" })
}

// warnOfModes logs guarded files with which other users can do what they must not.
func (s *settings) warnOfModes(log *slog.Logger) {
	for _, g := range s.guardedFiles() {
		info, err := os.Stat(g.Path)
		if err != nil {
			continue
		}
		if found, do := g.Exposed(info); do != "" {
			log.Warn("other users can "+found+" a file that must be kept from them; this prevents it: "+do, "file", g.Path, "mode", info.Mode().Perm().String())
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
