package broker

import (
	"testing"
	"time"
)

func TestTimeout(t *testing.T) {
	for configured, want := range map[time.Duration]time.Duration{
		0: DefaultTimeout, time.Second: 0, 2 * time.Second: 2 * time.Second, time.Hour: time.Hour, time.Hour + 1: 0, -1: 0,
	} {
		got, err := Timeout(configured, 2*time.Second)
		if got != want || (err != nil) != (want == 0) {
			t.Errorf("%v: %v, %v", configured, got, err)
		}
		if err != nil && err.Error() != "timeout: must be from 2s to 1h" {
			t.Error(err)
		}
	}
}
