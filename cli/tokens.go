package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/httpapi"
)

// token is the command that makes a token.
type token struct {
	Name   string          `arg:"" help:"Whose token it is; shows in the log."`
	Scopes []httpapi.Scope `required:"" placeholder:"SCOPE,..." help:"What it opens: schedule, receive, read, admin."`
}

// Run prints a new token on standard error, for a person to keep, and its line for the
// file on standard output: lapse token shop --scopes schedule >> tokens.yaml.
func (t *token) Run(_ context.Context, std streams) error {
	text := "lapse_" + rand.Text() // 128 bits, in an alphabet that needs no quoting
	made := httpapi.Token{Name: t.Name, Scopes: t.Scopes, SHA256: sha256.Sum256([]byte(text))}
	if err := httpapi.CheckTokens([]httpapi.Token{made}); err != nil {
		return (&faults{all: flattened(err)}).err()
	}
	fmt.Fprintf(std.err, "%s\nThis is the only time that it is shown. The server needs the line below in its --token-file.\n", text)
	scopes := make([]string, len(t.Scopes))
	for i, s := range t.Scopes {
		scopes[i] = string(s)
	}
	_, err := fmt.Fprintf(std.out, "- {name: %q, scopes: [%s], sha256: %q}\n", t.Name, strings.Join(scopes, ", "), hex.EncodeToString(made.SHA256[:]))
	return err
}

// readTokens reads a file of tokens: a YAML list of
//
//	{name: shop, scopes: [schedule, receive], sha256: "<64 hexadecimal digits>"}
//
// The error lists everything that is wrong with it.
func readTokens(file string) ([]httpapi.Token, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var entries []any
	if err := yaml.Unmarshal(text, &entries); err != nil {
		return nil, fmt.Errorf("%s: want a list of tokens: %s", file, yaml.FormatError(err, false, false))
	}
	var all *multierror.Error
	tokens := make([]httpapi.Token, len(entries))
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
	if all == nil { // otherwise it would complain again about what could not be read
		all = flattened(httpapi.CheckTokens(tokens))
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
func readToken(t *httpapi.Token, fields map[string]any) (all []error) {
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

func scopesOf(value any) (scopes []httpapi.Scope, ok bool) {
	list, ok := value.([]any)
	for _, v := range list {
		text, isText := v.(string)
		scopes, ok = append(scopes, httpapi.Scope(text)), ok && isText
	}
	return scopes, ok
}

// flattened returns the parts of an error that may be many.
func flattened(err error) *multierror.Error {
	var many *multierror.Error
	if err == nil || errors.As(err, &many) {
		return many
	}
	return multierror.Append(nil, err)
}

// changesOf tells how one list of tokens differs from the one before, by name.
func changesOf(before, after []httpapi.Token) (added, removed, changed []string) {
	old := make(map[string]httpapi.Token, len(before))
	for _, t := range before {
		old[t.Name] = t
	}
	for _, t := range after {
		was, known := old[t.Name]
		delete(old, t.Name)
		switch {
		case !known:
			added = append(added, t.Name)
		case was.SHA256 != t.SHA256 || !slices.Equal(was.Scopes, t.Scopes):
			changed = append(changed, t.Name)
		}
	}
	return added, slices.Sorted(maps.Keys(old)), changed
}
