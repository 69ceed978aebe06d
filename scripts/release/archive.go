package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A file is a part of an archive or a package.
type file struct {
	name string // in the archive, with slashes
	mode int64
	text []byte
}

// writeArchive writes a tar.gz. Its bytes follow from the files and the time alone.
func writeArchive(to string, files []file, when time.Time) (err error) {
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	packed := gzip.NewWriter(out)
	var entries []entry
	for _, f := range files {
		entries = append(entries, entry{tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), Typeflag: tar.TypeReg}, f.text})
	}
	return errors.Join(writeEntries(packed, entries, when), packed.Close())
}

// writeChecksums writes the SHA-256 of every file of a directory, as sha256sum --check reads it.
func writeChecksums(dir, name string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		if e.Name() == name {
			continue
		}
		sum, err := digest(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, sum+"  "+e.Name()+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "")), 0o644)
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// archived are the files of an archive, below one folder.
func archived(folder string, b *built) []file {
	files := []file{
		{"lapse", 0o755, b.binary},
		{"LICENSE", 0o644, b.texts["LICENSE"]},
		{"README.md", 0o644, b.texts["README.md"]},
		{"CHANGELOG.md", 0o644, b.texts["CHANGELOG.md"]},
		{"lapse.service", 0o644, b.texts[unitFile]},
		{"lapse.sysusers", 0o644, b.texts[usersFile]},
		{"lapse.env", 0o644, b.texts[configFile]},
	}
	files = append(files, file{"lapse.1", 0o644, b.manual})
	for _, shell := range shells {
		files = append(files, file{"completions/lapse." + shell, 0o644, b.completions[shell]})
	}
	for _, l := range b.licences {
		files = append(files, file{"licenses/" + l.name, 0o644, l.text})
	}
	for i := range files {
		files[i].name = path.Join(folder, files[i].name)
	}
	return files
}

// archiveName is the name of an archive without its ending.
func archiveName(version string, t target) string {
	return fmt.Sprintf("lapse_%s_%s", version, t)
}
