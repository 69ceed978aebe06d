package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/edge"
)

// written makes a file of this text.
func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// made runs lapse token and returns the token and its line.
func made(t *testing.T, args ...string) (text, line string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), append([]string{"token"}, args...), streams{&out, &errs}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	text, _, _ = strings.Cut(errs.String(), "\n")
	return text, out.String()
}

// What lapse token prints is what the server reads.
func TestTokenCommand(t *testing.T) {
	text, line := made(t, "shop", "--scopes", "schedule,read")
	other, _ := made(t, "shop", "--scopes", "schedule,read")
	if text == other || len(text) < 30 || !strings.HasPrefix(text, "lapse_") || strings.Contains(line, text) {
		t.Errorf("made %q, then %q, with the line %s", text, other, line)
	}
	_, second := made(t, "ops", "--scopes", "admin")
	got, err := readTokens(written(t, "tokens.yaml", line+second))
	if err != nil {
		t.Fatal(err)
	}
	want := edge.Token{Name: "shop", Scopes: []edge.Scope{"schedule", "read"}, SHA256: sha256.Sum256([]byte(text))}
	if diff := cmp.Diff(want, got[0]); diff != "" || len(got) != 2 || got[1].Name != "ops" {
		t.Errorf("%s; read %v", diff, got)
	}
	_, limited := made(t, "mail", "--scopes", "schedule", "--topics", "order.*,mail", "--max-topics", "20", "--max-pending", "3000")
	got, err = readTokens(written(t, "tokens.yaml", limited))
	if err != nil || !slices.Equal(got[0].Topics, []string{"order.*", "mail"}) || got[0].MaxTopics != 20 || got[0].MaxPending != 3000 {
		t.Errorf("read %+v, %v", got, err)
	}
	for _, args := range [][]string{{"ops", "--scopes", "admin", "--topics", "a"}, {"r", "--scopes", "read", "--max-topics", "1"},
		{"r", "--scopes", "read", "--topics", "a b"}, {"a b", "--scopes", "read"}, {"shop", "--scopes", "reed"}, {"shop"}, {"--scopes", "read"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), append([]string{"token"}, args...), streams{&out, &errs}); code != exitUsage || out.Len() > 0 {
			t.Errorf("%q: exit code %d, %s", args, code, &out)
		}
	}
}

// All faults of a file are reported at once, by name or place.
func TestTokenFileFaults(t *testing.T) {
	digest := strings.Repeat("ab", sha256.Size)
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"not yaml":  {"- {name: [", nil},
		"a map":     {"name: a", []string{"want a list"}},
		"empty":     {"", []string{"at least one token"}},
		"no tokens": {"[]", []string{"at least one token"}},
		"json":      {`[{"name":"a","scopes":["read"],"sha256":"` + digest + `"}]`, nil},
		"many": {`
- {name: short, scopes: [read], sha256: "abab"}
- {name: long, scopes: [read], sha256: "` + digest + `ab"}
- {name: odd, scopes: [read], sha256: "` + digest[1:] + `g"}
- {name: number, scopes: [read], sha256: 12}
- {name: one, scopes: read, sha256: "` + digest + `"}
- {name: typo, scope: [read], sha256: "` + digest + `"}
- {scopes: [read], sha256: "` + digest + `"}
- text
- {name: 7, scopes: [1], sha256: "` + digest + `"}
- {name: plain, scopes: [read], token: "lapse_x"}
- {name: limits, scopes: [schedule], topics: order, max_topics: 0, max_pending: many, sha256: "` + digest + `"}
- {name: nothing, scopes: [schedule], topics: [], max_topics: -1, max_pending: 1.5, sha256: "` + digest + `"}
`, []string{"short: sha256: want 64", "long: sha256", "odd: sha256", "number: sha256", "one: scopes: want a list", "typo: scope is not known",
			"typo: scopes is missing", "token 7: name is missing", "token 8: want name", "token 9: name: want a text", "token 9: scopes",
			"limits: topics: want", "limits: max_topics: want", "limits: max_pending: want", "nothing: topics: want", "nothing: max_topics: want",
			"nothing: max_pending: want", "plain: token is not known", "plain: sha256 is missing"}},
		"meaning": {`
- {name: a, scopes: [reed], sha256: "` + digest + `"}
- {name: a, scopes: [], sha256: "` + digest + `"}
`, []string{`a: scopes: there is no "reed"`, "a: the name is given twice", "scopes must name", "one token cannot have two names"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := written(t, "tokens.yaml", c.text)
			_, err := readTokens(file)
			if name == "json" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range append(c.want, file) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not told in\n%v", part, err)
				}
			}
			if strings.Contains(err.Error(), digest) {
				t.Error("a digest is told")
			}
		})
	}
	if _, err := readTokens(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file: no error")
	}
}

func TestChangesOfTokens(t *testing.T) {
	token := func(name string, digest byte, scopes ...edge.Scope) edge.Token {
		return edge.Token{Name: name, Scopes: scopes, SHA256: [sha256.Size]byte{digest}}
	}
	added, removed, changed := changesOf(
		[]edge.Token{token("same", 1, "read"), {Name: "new topics", Topics: []string{"a"}}, {Name: "new bound"}, token("gone", 2, "read"), token("new digest", 3, "read"), token("new scope", 4, "read")},
		[]edge.Token{token("new scope", 4, "admin"), token("new digest", 5, "read"), token("added", 6, "read"), {Name: "new topics"}, {Name: "new bound", MaxPending: 1}, token("same", 1, "read")})
	if diff := cmp.Diff([][]string{{"added"}, {"gone"}, {"new scope", "new digest", "new topics", "new bound"}}, [][]string{added, removed, changed}); diff != "" {
		t.Error(diff)
	}
}

// lineOf is a line of a token file for a token of this text.
func lineOf(name, text, scope string) string {
	digest := sha256.Sum256([]byte(text))
	return "- {name: " + name + ", scopes: [" + scope + `], sha256: "` + hex.EncodeToString(digest[:]) + "\"}\n"
}
