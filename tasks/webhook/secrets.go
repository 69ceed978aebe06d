package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// secrets are the keys of signatures, by name.
type secrets struct {
	byName map[string][]*standardwebhooks.Webhook
}

const (
	secretPrefix = "whsec_"
	minSecret    = 24 // bytes, as the specification wants it
	maxSecret    = 64
	// More would only make the header longer. Two are enough for a change.
	maxSecretsOfName = 10

	nameProblem = "must be 1 to 128 characters of A-Z a-z 0-9 . _ : @ - and begin with a letter or a digit"
)

var errSecret = errors.New("must be whsec_ and the base64 of 24 to 64 bytes")

// newSecrets reads secrets. The error lists everything that is wrong, and repeats none.
func newSecrets(byName map[string][]string) (*secrets, error) {
	s := &secrets{byName: make(map[string][]*standardwebhooks.Webhook, len(byName))}
	var all *multierror.Error
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list := byName[name]
		if !validName(name) {
			all = multierror.Append(all, fmt.Errorf("a secret's name %s", nameProblem))
			continue
		}
		if len(list) == 0 || len(list) > maxSecretsOfName {
			all = multierror.Append(all, fmt.Errorf("secret %s: must have 1 to %d values", name, maxSecretsOfName))
		}
		for i, text := range list {
			key, err := readSecret(text)
			if err != nil {
				all = multierror.Append(all, fmt.Errorf("secret %s: value %d %w", name, i+1, err))
				continue
			}
			signer, err := standardwebhooks.NewWebhookRaw(key)
			if err != nil {
				all = multierror.Append(all, fmt.Errorf("secret %s: value %d: %w", name, i+1, err))
				continue
			}
			s.byName[name] = append(s.byName[name], signer)
		}
	}
	return s, all.ErrorOrNil()
}

func readSecret(text string) ([]byte, error) {
	digits, found := strings.CutPrefix(text, secretPrefix)
	key, err := base64.StdEncoding.Strict().DecodeString(digits)
	if !found || err != nil || len(key) < minSecret || len(key) > maxSecret {
		return nil, errSecret // the cause would show a part of it
	}
	return key, nil
}

func (s *secrets) has(name string) bool { return len(s.byName[name]) > 0 }

// sign makes the signatures of a request, one with each secret of a name, in the order in which
// they were given, newest first. It reports false if there is no such secret.
func (s *secrets) sign(name, id string, at time.Time, payload []byte) (signatures string, ok bool) {
	all := make([]string, 0, 2)
	for _, signer := range s.byName[name] {
		signature, err := signer.Sign(id, at, payload)
		if err != nil {
			return "", false
		}
		all = append(all, signature)
	}
	return strings.Join(all, " "), len(all) > 0
}

// validName reports whether a text is in the alphabet of ids and topics.
func validName(v string) bool {
	if v == "" || len(v) > 128 || strings.ContainsRune("._:@-", rune(v[0])) {
		return false
	}
	for _, c := range []byte(v) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._:@-", rune(c)) {
			return false
		}
	}
	return true
}
