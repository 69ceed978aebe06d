package conn

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Info is a server's reply to INFO.
type Info map[string]string

// ParseInfo reads the text of a reply to INFO.
func ParseInfo(text string) Info {
	in := Info{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			in[name] = value
		}
	}
	return in
}

// Number returns a figure of the reply, or 0.
func (in Info) Number(name string) float64 {
	n, _ := strconv.ParseFloat(in[name], 64)
	return n
}

// EachInfo reads INFO of all servers, one answer at a time.
func (c *Client) EachInfo(ctx context.Context, sections []string, f func(in Info) error) error {
	var mu sync.Mutex
	return c.EachServer(ctx, func(ctx context.Context, c *redis.Client) error {
		in, err := InfoOf(ctx, c, sections)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		return f(in)
	})
}

// InfoOf reads sections of INFO of one server.
func InfoOf(ctx context.Context, c *redis.Client, sections []string) (Info, error) {
	text := ""
	for _, section := range sections { // several in one command only since 7.0
		part, err := c.Info(ctx, section).Result()
		if err != nil {
			return nil, err
		}
		text += part
	}
	return ParseInfo(text), nil
}

// Replicas counts the replicas that are connected and have reported lately. One that hangs
// stays connected for a minute.
func (in Info) Replicas() (n int) {
	for name, value := range in {
		if !strings.HasPrefix(name, "slave") {
			continue
		}
		replica := Info{}
		for part := range strings.SplitSeq(value, ",") {
			k, v, _ := strings.Cut(part, "=")
			replica[k] = v
		}
		if replica["state"] == "online" && replica.Number("lag") < maxLag.Seconds() {
			n++
		}
	}
	return n
}

// maxLag is how old a replica's last report may be. It reports once a second.
const maxLag = 5 * time.Second

// CompareVersions compares numbers with dots.
func CompareVersions(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return x - y
		}
	}
	return 0
}
