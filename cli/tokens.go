package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/edge"
)

// token is the command that makes a token.
type token struct {
	Name   string       `arg:"" help:"Whose token it is; shows in the log."`
	Scopes []edge.Scope `required:"" placeholder:"SCOPE,..." help:"What it opens: schedule, receive, read, admin."`

	Topics     []string `env:"-" placeholder:"TOPIC,..." help:"The topics that it is limited to: names, or the beginning of names and an asterisk (order.*)."`
	MaxTopics  int      `env:"-" placeholder:"N" help:"So many of these may have tasks, on each node, before it can bring in another one."`
	MaxPending int      `env:"-" placeholder:"N" help:"So many tasks may wait in these, and as many be dead or kept, on each node, before it can create another one."`
}

// Run prints a new token on standard error, for a person to keep, and its line for the
// file on standard output: lapse token shop --scopes schedule >> tokens.yaml.
func (t *token) Run(_ context.Context, std streams, bad *faults) error {
	if err := bad.err(); err != nil {
		return err
	}
	text := "lapse_" + rand.Text() // 128 bits, in an alphabet that needs no quoting
	made := edge.Token{Name: t.Name, Scopes: t.Scopes, SHA256: edge.DigestOf(text), Topics: t.Topics, MaxTopics: t.MaxTopics, MaxPending: t.MaxPending}
	if err := edge.CheckTokens([]edge.Token{made}); err != nil {
		return (&faults{all: flattened(err)}).err()
	}
	fmt.Fprintf(std.err, "%s\nThis is the only time that it is shown. The server needs the line below in its --token-file.\n", text)
	scopes := make([]string, len(t.Scopes))
	for i, s := range t.Scopes {
		scopes[i] = string(s)
	}
	limits := ""
	if len(t.Topics) > 0 {
		// The alphabet of patterns needs no escapes.
		limits = `, topics: ["` + strings.Join(t.Topics, `", "`) + `"]`
	}
	if t.MaxTopics > 0 {
		limits += fmt.Sprint(", max_topics: ", t.MaxTopics)
	}
	if t.MaxPending > 0 {
		limits += fmt.Sprint(", max_pending: ", t.MaxPending)
	}
	_, err := fmt.Fprintf(std.out, "- {name: %q, scopes: [%s]%s, sha256: %q}\n", t.Name, strings.Join(scopes, ", "), limits, hex.EncodeToString(made.SHA256[:]))
	return err
}

// readTokens reads a file of tokens: a YAML list of
//
//	{name: shop, scopes: [schedule, receive], sha256: "<64 hexadecimal digits>"}
//
// to which topics, max_topics and max_pending may be added.
// The error lists everything that is wrong with it.
func readTokens(file string) ([]edge.Token, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var entries []any
	if err := yaml.Unmarshal(text, &entries); err != nil {
		return nil, fmt.Errorf("%s: want a list of tokens: %s", file, yaml.FormatError(err, false, false))
	}
	var all *multierror.Error
	tokens := make([]edge.Token, len(entries))
	for i, entry := range entries {
		who := fmt.Sprint("token ", i+1)
		fields, ok := entry.(map[string]any)
		if !ok {
			all = multierror.Append(all, fmt.Errorf("%s: want name, scopes and sha256", who))
			continue
		}
		if name, ok := fields["name"].(string); ok && name != "" {
			who = name
		}
		for _, err := range readToken(&tokens[i], fields) {
			all = multierror.Append(all, fmt.Errorf("%s: %w", who, err))
		}
	}
	if all == nil { // otherwise it would report again what could not be read
		all = flattened(edge.CheckTokens(tokens))
	}
	if all == nil {
		return tokens, nil
	}
	for i, err := range all.Errors {
		all.Errors[i] = fmt.Errorf("%s: %w", file, err)
	}
	return nil, all
}

// readToken reads one entry and returns what is wrong with it.
func readToken(t *edge.Token, fields map[string]any) (all []error) {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		var ok bool
		var want string
		switch value := fields[key]; key {
		case "name":
			t.Name, ok = value.(string)
			want = "a text"
		case "scopes":
			t.Scopes, ok = scopesOf(value)
			want = "a list such as [schedule, read]"
		case "sha256":
			digits, _ := value.(string)
			digest, err := hex.DecodeString(digits)
			ok, want = err == nil && copy(t.SHA256[:], digest) == len(digest) && len(digest) == sha256.Size, "64 hexadecimal digits in quotes"
		case "topics":
			t.Topics, ok = textsOf(value)
			ok, want = ok && len(t.Topics) > 0, `a list such as ["order.*", mail]`
		case "max_topics":
			t.MaxTopics, ok = countOf(value)
			want = "a number from 1"
		case "max_pending":
			t.MaxPending, ok = countOf(value)
			want = "a number from 1"
		default:
			all = append(all, fmt.Errorf("%s is not known", key))
			continue
		}
		if !ok {
			all = append(all, fmt.Errorf("%s: want %s", key, want))
		}
	}
	for _, key := range []string{"name", "scopes", "sha256"} {
		if _, given := fields[key]; !given {
			all = append(all, fmt.Errorf("%s is missing", key))
		}
	}
	return all
}

func scopesOf(value any) (scopes []edge.Scope, ok bool) {
	texts, ok := textsOf(value)
	for _, text := range texts {
		scopes = append(scopes, edge.Scope(text))
	}
	return scopes, ok
}

func textsOf(value any) (texts []string, ok bool) {
	list, ok := value.([]any)
	for _, v := range list {
		text, isText := v.(string)
		texts, ok = append(texts, text), ok && isText
	}
	return texts, ok
}

// countOf reads a whole number from 1.
func countOf(value any) (n int, ok bool) {
	switch v := value.(type) {
	case uint64:
		n = int(min(v, math.MaxInt32))
	case int64:
		n = int(min(v, math.MaxInt32))
	}
	return n, n >= 1
}

// flattened returns the parts of an error that may join several.
func flattened(err error) *multierror.Error {
	var many *multierror.Error
	if err == nil || errors.As(err, &many) {
		return many
	}
	return multierror.Append(nil, err)
}

// changesOf returns how one list of tokens differs from the previous one, by name.
func changesOf(before, after []edge.Token) (added, removed, changed []string) {
	old := make(map[string]edge.Token, len(before))
	for _, t := range before {
		old[t.Name] = t
	}
	for _, t := range after {
		was, known := old[t.Name]
		delete(old, t.Name)
		switch {
		case !known:
			added = append(added, t.Name)
		case !t.Equal(&was):
			changed = append(changed, t.Name)
		}
	}
	return added, slices.Sorted(maps.Keys(old)), changed
}
