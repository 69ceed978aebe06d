package docs

import (
	"context"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The SQL of each page runs in order, in a PostgreSQL of its own, where there is one. A test
// machine need not have it.
func TestSQL(t *testing.T) {
	t.Parallel()
	initdb := postgresTool("initdb")
	if initdb == "" || testing.Short() {
		t.Skip("there is no PostgreSQL")
	}
	dir, err := os.MkdirTemp("", "lapse-sql-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	command := func(tool string, args ...string) *exec.Cmd {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		t.Cleanup(cancel)
		c := exec.CommandContext(ctx, filepath.Join(filepath.Dir(initdb), tool), args...)
		c.Dir, c.SysProcAttr = dir, &syscall.SysProcAttr{}
		if os.Getuid() == 0 { // which PostgreSQL refuses
			owner := owner(t)
			if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
				t.Fatal(err)
			}
			c.SysProcAttr.Credential = owner
		}
		return c
	}
	data := filepath.Join(dir, "data")
	if out, err := command("initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "--locale", "C").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	start := func(action string, args ...string) {
		if out, err := command("pg_ctl", append([]string{"-D", data, "-w", "-l", filepath.Join(dir, "log"), action}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("pg_ctl %s: %v\n%s", action, err, out)
		}
	}
	start("start", "-o", "-c listen_addresses='' -c fsync=off -k "+dir)
	t.Cleanup(func() { start("stop", "-m", "immediate") })
	for _, page := range pages(t) {
		var script strings.Builder
		for _, b := range blocksOf(page, readPage(t, page)) {
			if b.lang == "sql" && exempt[b.name()] == "" {
				script.WriteString(b.text + "\n")
			}
		}
		if script.Len() == 0 {
			continue
		}
		name := "page_" + strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(page)
		if out, err := command("psql", "-h", dir, "-U", "postgres", "-c", "CREATE DATABASE "+name).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		psql := command("psql", "-h", dir, "-U", "postgres", "-d", name, "-v", "ON_ERROR_STOP=1", "-f", "-")
		psql.Stdin = strings.NewReader(script.String())
		if out, err := psql.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", page, err, out)
		}
	}
}

// postgresTool finds a program of PostgreSQL, which Debian keeps apart.
func postgresTool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		path, _ = filepath.EvalSymlinks(path) // the others stand beside what it links to
		return path
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is a good one
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

// owner is a user that is not root.
func owner(t *testing.T) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Skip("there is no user but root")
	return nil
}
