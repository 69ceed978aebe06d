package httpapi

import (
	"os"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
)

// A backup is made below the directory of backups and nowhere else.
func TestBackup(t *testing.T) {
	backups := t.TempDir()
	ledger, err := diskledger.Open(t.TempDir()+"/data", diskledger.Options{MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, ledger, tasks.Config{}, Config{BackupDir: backups})
	v := r.want(r.do("POST", "/v1/backup", `{"name":"first"}`), 200)
	if v["name"] != "first" || v["path"] != backups+"/first" || v["bytes"].(float64) == 0 {
		t.Errorf("answered %v", v)
	}
	r.want(r.do("POST", "/v1/backup", ""), 200)
	r.refused(r.do("POST", "/v1/backup", `{"name":"first"}`), 409, "no_backup", "")
	if err := os.WriteFile(backups+"/mine.partial", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := r.do("POST", "/v1/backup", `{"name":"mine"}`)
	r.refused(a, 409, "no_backup", "")
	if _, err := os.Stat(backups + "/mine.partial"); err != nil || !strings.Contains(string(a.body), "mine.partial") {
		t.Errorf("a file in the way: %s, %v", a.body, err)
	}
	for _, name := range []string{"../x", "a/b", ".x", "x.partial", "a b"} {
		r.refused(r.do("POST", "/v1/backup", `{"name":"`+name+`"}`), 422, "invalid", "name")
	}
	r.refused(r.do("POST", "/v1/backup", `{"dir":"x"}`), 422, "invalid", "dir")
}

func TestNoBackup(t *testing.T) {
	r := newRigWith(t, tasks.Config{}, Config{BackupDir: t.TempDir()})
	a := r.do("POST", "/v1/backup", "")
	r.refused(a, 409, "no_backup", "")
	if !strings.Contains(string(a.body), "/v1/export") {
		t.Errorf("answered %s", a.body)
	}
}
