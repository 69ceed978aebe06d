package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/cli/internal/commandline"
	"github.com/lapsehq/lapse/client"
)

// printConfig writes the settings in effect as YAML that --config reads back, each with its source.
// A setting that is not set and has no default is a comment. Passwords are masked, so that the text
// can be shared.
func printConfig(w io.Writer, command *commandline.Command, file *configFile) error {
	var text bytes.Buffer
	for _, flag := range command.Flags {
		if notSettings[flag.Name] {
			continue
		}
		name, source := strings.ReplaceAll(flag.Name, "-", "_"), cmp.Or(flag.Source, "default")
		if flag.Source == "" && flag.IsZero() && flag.Default == "" && !flag.IsBool() {
			fmt.Fprintf(&text, "# %s: not set\n", name)
			continue
		}
		value, masked, err := settingText(flag.Value())
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

// secrets match the passwords in a URL of Redis: after a colon before the last @ of its hosts, and
// in parameters.
var secrets = regexp.MustCompile(`(://[^/?:]*:)[^/?]*(@)|([?&][^=&]*password=)[^&]*`)

// settingText is a value in the form of the file, and reports whether a part of it was masked. JSON
// is YAML, and marks texts clearly.
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

// printTopics writes the file's settings of topics. They have no other source.
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
