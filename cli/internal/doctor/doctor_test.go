package doctor

import (
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/internal/checkup"
)

// Each judgement, good and bad. What is not good says what to do.
func TestJudgements(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	leaf := func(from, to time.Duration) *x509.Certificate {
		return &x509.Certificate{NotBefore: now.Add(from), NotAfter: now.Add(to), DNSNames: []string{"lapse.example"}}
	}
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		f    checkup.Finding
		want checkup.Verdict
		do   string
	}{
		"files":            {files(12_048, 10_000), checkup.OK, ""},
		"unlimited files":  {files(1<<63, 10_000), checkup.OK, ""},
		"few files":        {files(1024, 10_000), checkup.Warn, "LimitNOFILE=12048"},
		"memory":           {Memory(8<<30, 16<<30), checkup.OK, ""},
		"little memory":    {Memory(8<<30, 10<<30), checkup.Warn, "5368709120"},
		"unknown memory":   {Memory(8<<30, 0), checkup.Unknown, "max-bytes"},
		"clock":            {clock(true, true), checkup.OK, ""},
		"free clock":       {clock(false, true), checkup.Warn, "NTP"},
		"unknown clock":    {clock(false, false), checkup.Unknown, "NTP"},
		"disk":             {disk("data", "", 10<<30), checkup.OK, ""},
		"disk in memory":   {disk("data", "tmpfs", 10<<30), checkup.Fail, "on a disk"},
		"little disk":      {disk("data", "", 300<<20), checkup.Warn, "make room"},
		"full disk":        {disk("data", "nfs", 1<<20), checkup.Fail, "make room"},
		"network disk":     {disk("data", "nfs", 10<<30), checkup.Warn, "local disk"},
		"container disk":   {disk("data", "overlay", 10<<30), checkup.Warn, "volume"},
		"sync":             {syncTimes("data", time.Millisecond, 9*time.Millisecond, 50), checkup.OK, ""},
		"slow sync":        {syncTimes("data", 30*time.Millisecond, 90*time.Millisecond, 50), checkup.Warn, "SSD"},
		"no sync":          {syncTimes("data", time.Microsecond, time.Millisecond, 50), checkup.Warn, "cache"},
		"certificate":      {certificate(leaf(-day, 90*day), "lapse.example", now), checkup.OK, ""},
		"expired":          {certificate(leaf(-9*day, -day), "", now), checkup.Fail, "renew"},
		"not yet":          {certificate(leaf(day, 9*day), "", now), checkup.Fail, "clock"},
		"ends soon":        {certificate(leaf(-day, 3*day), "", now), checkup.Warn, "renew"},
		"for another name": {certificate(leaf(-day, 90*day), "other.example", now), checkup.Warn, "refuse"},
	} {
		if c.f.Verdict != c.want || !strings.Contains(c.f.Do, c.do) || (c.f.Do == "") != (c.do == "") || c.f.Found == "" || c.f.Subject == "" {
			t.Errorf("%s: %+v", name, c.f)
		}
	}
}

func TestFilesOfMachine(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := Disk("data", dir)[0]; got.Verdict != checkup.Warn || !strings.HasPrefix(got.Do, "chmod 700 ") {
		t.Errorf("got %+v", got)
	}
	if got := Disk("data", filepath.Join(dir, "a", "b")); got[0].Verdict != checkup.OK || len(got) != 3 {
		t.Errorf("got %+v", got)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	file := filepath.Join(dir, "secrets")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := (Guarded{Setting: "tls-key", Path: file}).Modes(); got.Verdict != checkup.Warn || got.Do != "chmod g-w,o= "+file {
		t.Errorf("got %+v", got)
	}
	if got := (Guarded{Setting: "token-file", Path: file, Public: true}).Modes(); got.Verdict != checkup.OK {
		t.Errorf("got %+v", got)
	}
	if got := Disk("data", file)[0]; got.Verdict != checkup.Fail {
		t.Errorf("got %+v", got)
	}
}

func TestAddresses(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for address, want := range map[string]checkup.Verdict{
		"127.0.0.1:0": checkup.OK, listener.Addr().String(): checkup.Warn, "192.0.2.1:0": checkup.Fail,
	} {
		if got := Address("listen", address); got.Verdict != want {
			t.Errorf("%s: %+v", address, got)
		}
	}
}
