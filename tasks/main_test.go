package tasks

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	logging.Disable() // the Redis client's, of servers that the tests stop
	goleak.VerifyTestMain(m)
}
