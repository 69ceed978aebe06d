package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A licence is a text under which something that is linked in may be given away.
type licence struct {
	name string // below licenses/ in an archive
	text []byte
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|unlicense)`)

// A listedPackage is what go list tells of a package.
type listedPackage struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct{ Path, Version, Dir string }
}

// licences returns the texts of all that the binary of a target is made of: of each module whose
// packages are linked, in the folders of these packages and above them, of Go itself, and of files
// that the program serves. A module without any is an error.
func (w *workshop) licences(ctx context.Context, t target) ([]licence, error) {
	env := append(w.environ("install"), "GOOS="+t.os, "GOARCH="+t.arch)
	env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, "GOFLAGS=") })
	env = append(env, "GOFLAGS=-mod=mod -modcacherw")
	// A module of its own, since go list takes no version. It requires the program alone.
	dir := filepath.Join(w.dir, "list")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	mod := fmt.Sprintf("module list\n\ngo 1.26.0\n\nrequire %s %s\n", modulePath, w.src.version)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(mod), 0o644); err != nil {
		return nil, err
	}
	out, err := command(ctx, dir, env, "go", "list", "-deps", "-json=ImportPath,Dir,Standard,Module", "-tags", tags, modulePath).Output()
	if err != nil {
		return nil, failure(err, "go", []string{"list", "-deps"})
	}
	found := map[string][]byte{} // by name
	counts := map[string]int{}   // by module
	for decode := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := decode.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Standard || p.Module == nil {
			continue
		}
		in := p.Module.Path + "@" + p.Module.Version
		for dir := p.Dir; ; dir = filepath.Dir(dir) {
			rel, err := filepath.Rel(p.Module.Dir, dir)
			if err != nil || strings.HasPrefix(rel, "..") {
				return nil, fmt.Errorf("%s: %s is not below %s", p.ImportPath, dir, p.Module.Dir)
			}
			n, err := readLicences(dir, path.Join(in, filepath.ToSlash(rel)), found)
			if err != nil {
				return nil, err
			}
			counts[in] += n
			if rel == "." {
				break
			}
		}
	}
	var without []string
	for in, n := range counts {
		if n == 0 {
			without = append(without, in)
		}
	}
	if len(without) > 0 {
		slices.Sort(without)
		return nil, fmt.Errorf("no licence in %s", strings.Join(without, ", "))
	}
	root, err := command(ctx, w.dir, env, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, failure(err, "go", []string{"env", "GOROOT"})
	}
	if n, err := readLicences(strings.TrimSpace(string(root)), "go", found); err != nil || n == 0 {
		return nil, errors.Join(err, errors.New("no licence of Go in GOROOT"))
	}
	var all []licence
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, licence{name, found[name]})
	}
	return all, nil
}

// readLicences adds the licences of one folder, and returns how many it has.
func readLicences(dir, name string, found map[string][]byte) (n int, err error) {
	entries, err := fs.ReadDir(os.DirFS(dir), ".")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return 0, err
		}
		found[path.Join(name, e.Name())] = text
		n++
	}
	return n, nil
}
