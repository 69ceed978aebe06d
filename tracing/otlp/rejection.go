package otlp

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// A rejection says that the collector has taken a batch, but not all of its spans. None of them may
// be sent again.
type rejection struct {
	spans  int
	reason string
}

// Error implements error.
func (r *rejection) Error() string {
	return fmt.Sprintf("the collector has rejected %d spans: %q", r.spans, r.reason)
}

// maxReason bounds the text of a collector in the log, in bytes.
const maxReason = 256

// Fields of an ExportTraceServiceResponse and of the ExportTracePartialSuccess in it. Their package
// would link gRPC.
const (
	partialSuccess protowire.Number = 1
	rejectedSpans  protowire.Number = 1
	errorMessage   protowire.Number = 2
)

// rejectionIn returns what the answer of a collector says about rejected spans, nil if that is
// nothing. Some collectors answer with JSON or text, which says nothing here.
func rejectionIn(answer []byte) *rejection {
	var r rejection
	ok := fields(answer, func(n protowire.Number, _ uint64, partial []byte) bool {
		return n != partialSuccess || fields(partial, func(n protowire.Number, v uint64, text []byte) bool {
			switch n {
			case rejectedSpans:
				r.spans = int(min(max(int64(v), 0), math.MaxInt32))
			case errorMessage:
				r.reason = strings.ToValidUTF8(string(text[:min(len(text), maxReason)]), "?")
			}
			return true
		})
	})
	if !ok || r.spans == 0 {
		return nil
	}
	return &r
}

// fields calls visit with the fields of a message: a number or a text each. It reports whether the
// message is one, and visit has returned true each time.
func fields(message []byte, visit func(n protowire.Number, v uint64, text []byte) bool) bool {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return false
		}
		message = message[size:]
		var v uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			text, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(n, kind, message)
		}
		if size < 0 || !visit(n, v, text) {
			return false
		}
		message = message[size:]
	}
	return true
}
