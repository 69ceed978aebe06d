package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// The status decides the outcome of an answer. Its body is read to the end, so that the
	// connection can be used again, but only up to a size and for a time.
	maxAnswer   = 64 << 10
	drainWithin = time.Second
	maxExcerpt  = 200 // bytes of the body that a last error shows

	minRetryAfter = time.Second
	maxRetryAfter = 24 * time.Hour
)

// read ends an answer and returns how its body begins, if the attempt has failed. cancel ends the
// request, and with it a body that never ends.
func read(answer *http.Response, cancel context.CancelFunc) (excerpt string) {
	defer answer.Body.Close()
	if answer.ContentLength == 0 || answer.StatusCode == http.StatusSwitchingProtocols {
		return ""
	}
	defer time.AfterFunc(drainWithin, cancel).Stop()
	body := io.LimitReader(answer.Body, maxAnswer)
	if answer.StatusCode/100 != 2 {
		head := make([]byte, maxExcerpt)
		n, _ := io.ReadFull(body, head) // a short body is enough
		excerpt = printable(head[:n])
	}
	_, _ = io.Copy(io.Discard, body)
	return excerpt
}

// printable makes one line of a text that a receiver sent.
func printable(text []byte) string {
	line := strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) || !unicode.IsPrint(c) || c == unicode.ReplacementChar {
			return ' '
		}
		return c
	}, string(text))
	return strings.Join(strings.Fields(line), " ")
}

// judge returns the outcome of an answer, and its result for the task.
func judge(answer *http.Response, said string, now time.Time) (outcome, error) {
	status := answer.StatusCode
	if status/100 == 2 {
		return ok, nil
	}
	text := "answered " + strconv.Itoa(status)
	if name := http.StatusText(status); name != "" {
		text += " " + name
	}
	if said != "" {
		text += ": " + said
	}
	err := errors.New(text)
	switch {
	case status == http.StatusGone:
		return gone, task.Kill(err)
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		if pause, ok := retryAfter(answer.Header.Get("Retry-After"), now); ok {
			return throttled, task.RetryAfter(err, pause)
		}
		return throttled, err
	case status/100 == 3:
		return redirect, fmt.Errorf("%w (redirects are not followed)", err)
	case status/100 == 4:
		return refused, err
	case status/100 == 5:
		return failed, err
	}
	return odd, err
}

// retryAfter reads a Retry-After header: seconds, or a date. The pause is brought into 1 s to 24 h.
// It reports false if the header is not valid, or if its date is past.
func retryAfter(header string, now time.Time) (pause time.Duration, ok bool) {
	if seconds, err := strconv.ParseUint(header, 10, 32); err == nil {
		pause = time.Duration(seconds) * time.Second
	} else if strings.Trim(header, "0123456789") == "" && header != "" {
		pause = maxRetryAfter // more seconds than an int64 holds
	} else if at, err := http.ParseTime(header); err == nil {
		pause = at.Sub(now)
	}
	if pause <= 0 {
		return 0, false
	}
	return min(max(pause, minRetryAfter), maxRetryAfter), true
}
