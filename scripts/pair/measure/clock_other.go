//go:build !linux

package measure

import (
	"errors"
	"time"
)

// ProcessorTime needs Linux: other systems have no clock of another process that counts less than
// milliseconds.
func ProcessorTime(int) (time.Duration, error) {
	return 0, errors.New("pairs are measured on Linux only")
}
