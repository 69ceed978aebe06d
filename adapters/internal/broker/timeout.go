package broker

import (
	"fmt"
	"time"
)

// DefaultTimeout is how long an attempt may take unless a way is configured otherwise.
const DefaultTimeout = 10 * time.Second

// Timeout returns how long an attempt may take: what is configured, or DefaultTimeout for 0. The
// error says which values are allowed: from least to an hour.
func Timeout(configured, least time.Duration) (time.Duration, error) {
	if configured == 0 {
		return DefaultTimeout, nil
	}
	if configured < least || configured > time.Hour {
		return 0, fmt.Errorf("timeout: must be from %v to 1h", least)
	}
	return configured, nil
}
