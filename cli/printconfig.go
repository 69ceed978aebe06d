package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/client"
)

// printConfig writes the settings in effect as YAML that --config reads back, each with
// where it comes from. A setting that is not set and has no default is a comment.
// Passwords are masked, so that the text can be shown around.
func printConfig(w io.Writer, command *kong.Context, file *configFile) error {
	var text bytes.Buffer
	for _, flag := range command.Selected().Flags {
		if notSettings[flag.Name] {
			continue
		}
		name, source := strings.ReplaceAll(flag.Name, "-", "_"), sourceOf(command, file, flag)
		if source == "default" && flag.Target.IsZero() && !flag.HasDefault && flag.Target.Kind() != reflect.Bool {
			fmt.Fprintf(&text, "# %s: not set\n", name)
			continue
		}
		value, masked, err := settingText(flag.Target.Interface())
		if err != nil {
			return err
		}
		if masked {
			source += "; a password is masked"
		}
		fmt.Fprintf(&text, "%s: %s  # %s\n", name, value, source)
	}
	printTopics(&text, file)
	_, err := w.Write(text.Bytes())
	return err
}

// sourceOf tells where the value of a flag comes from.
func sourceOf(command *kong.Context, file *configFile, flag *kong.Flag) string {
	source := "default"
	for _, name := range flag.Envs {
		if _, set := os.LookupEnv(name); set {
			source = "environment " + name
		}
	}
	for _, p := range command.Path {
		switch {
		case p.Flag != flag:
		case p.Resolved:
			source = file.place(flag.Name)
		default:
			return "flag --" + flag.Name
		}
	}
	return source
}

// secrets are the passwords in a URL of Redis: behind a colon in front of the last @ of its
// hosts, and in parameters.
var secrets = regexp.MustCompile(`(://[^/?:]*:)[^/?]*(@)|([?&][^=&]*password=)[^&]*`)

// settingText is a value as the file may have it, and tells whether something in it was
// masked. JSON is YAML, and leaves no doubt about what is text.
func settingText(v any) (text string, masked bool, err error) {
	switch set := v.(type) {
	case time.Duration:
		return client.Duration(set).String(), false, nil
	case slog.Level:
		return strings.ToLower(set.String()), false, nil
	case string:
		shown := secrets.ReplaceAllString(set, "$1$3***$2")
		v, masked = shown, shown != set
	}
	plain, err := json.MarshalWithOption(v, json.DisableHTMLEscape())
	return string(plain), masked, err
}

// printTopics writes what the file says about topics: nothing else does.
func printTopics(w io.Writer, file *configFile) {
	if len(file.topics) == 0 {
		return
	}
	fmt.Fprintln(w, "topics:")
	for _, name := range slices.Sorted(maps.Keys(file.topics)) {
		set := file.topics[name]
		fmt.Fprintf(w, "  %q: %s  # %s\n", name, topicText(&set), file.place("topics."+name))
	}
}
