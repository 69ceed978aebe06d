package movein

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-json"
)

// Headers that imported tasks have.
const (
	// ImportedHeader names the source of an imported task.
	ImportedHeader = "imported"
	// EncodingHeader says how a payload was made that is not the source's JSON.
	EncodingHeader = "payload-encoding"
)

// maxID is how many bytes the id of a task has at most.
const maxID = 128

// IDOf returns the id of a task that stands for name: the name itself if it may be an id, 1 to 128
// of A-Za-z0-9._:@-, the first one a letter or digit. Otherwise it is "sha256:" and the SHA-256 of
// the name in hexadecimal.
func IDOf(name string) string {
	if IsID(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// IsID reports whether a text may be the id of a task, or the name of a topic.
func IsID(text string) bool {
	if text == "" || len(text) > maxID || strings.IndexByte("._:@-", text[0]) >= 0 {
		return false
	}
	for i := range len(text) {
		c := text[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("._:@-", c) < 0 {
			return false
		}
	}
	return true
}

// PayloadOf makes a payload of what a source has. JSON stays as it is, and the encoding is "".
// Other text becomes a JSON string, of the encoding "text". What is no UTF-8 becomes a string in
// base64, of the encoding "base64". Nothing stays nothing.
func PayloadOf(body []byte) (payload []byte, encoding string) {
	switch {
	case len(body) == 0:
		return nil, ""
	case json.Valid(body) && utf8.Valid(body):
		return body, ""
	case utf8.Valid(body):
		return TextJSON(string(body)), "text"
	}
	return TextJSON(base64.StdEncoding.EncodeToString(body)), "base64"
}

// TextJSON writes a text as JSON.
func TextJSON(text string) []byte {
	if !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r > '~' }) {
		return append(append(append(make([]byte, 0, len(text)+2), '"'), text...), '"')
	}
	quoted, _ := json.MarshalWithOption(text, json.DisableHTMLEscape()) // a text cannot fail
	return quoted
}
