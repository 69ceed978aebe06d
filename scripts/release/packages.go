package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // a format of nfpm
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // a format of nfpm
)

// packageFormats are those of a release.
var packageFormats = []string{"deb", "rpm"}

// The scripts of the packages, below scripts/release/package.
const (
	postinstall = "postinstall.sh"
	preremove   = "preremove.sh"
	postremove  = "postremove.sh"
)

// writePackage writes a package for Linux into a directory. Config files of the user stay as they
// are when a package is upgraded. What is under /var/lib/lapse belongs to no package: it stays,
// too, when the package is removed.
func writePackage(dir, format string, src source, t target, b *built) error {
	work, err := os.MkdirTemp("", "lapse-package-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	info := describe(src, t)
	add := func(name string, mode os.FileMode, kind string, text []byte) error {
		at := filepath.Join(work, strings.ReplaceAll(strings.Trim(name, "/"), "/", "%"))
		if err := os.WriteFile(at, text, 0o600); err != nil {
			return err
		}
		info.Contents = append(info.Contents, &files.Content{Source: at, Destination: name, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: mode, MTime: src.time, Owner: "root", Group: "root"}})
		return nil
	}
	for _, f := range packaged(format, b) {
		kind := ""
		if strings.HasPrefix(f.name, "/etc/") {
			kind = files.TypeConfigNoReplace
		}
		if err := add(f.name, os.FileMode(f.mode), kind, f.text); err != nil {
			return err
		}
	}
	info.Contents = append(info.Contents, &files.Content{Destination: "/etc/lapse", Type: files.TypeDir,
		FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: src.time, Owner: "root", Group: "root"}})
	for script, to := range map[string]*string{
		postinstall: &info.Scripts.PostInstall, preremove: &info.Scripts.PreRemove, postremove: &info.Scripts.PostRemove,
	} {
		*to = filepath.Join(work, script)
		if err := os.WriteFile(*to, b.scripts[script], 0o600); err != nil {
			return err
		}
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var made bytes.Buffer
	if err := packager.Package(info, &made); err != nil {
		return fmt.Errorf("%s: %w", format, err)
	}
	return os.WriteFile(filepath.Join(dir, packager.ConventionalFileName(info)), made.Bytes(), 0o644)
}

// describe fills in what package managers show.
func describe(src source, t target) *nfpm.Info {
	version, before, _ := strings.Cut(src.bare(), "-")
	return &nfpm.Info{
		Name: "lapse", Arch: t.arch, Platform: "linux",
		Version: version, Prerelease: strings.ReplaceAll(before, "-", "."), VersionSchema: "none", Release: "1",
		Section: "net", Priority: "optional",
		Maintainer: "The Lapse authors", Homepage: "https://" + modulePath, License: "Apache-2.0",
		Description: "Durable deadline scheduler\nLapse makes things happen the moment their time runs out: it keeps tasks in\nmemory and in a ledger, and delivers each once it is due.",
		MTime:       src.time,
	}
}

// zshFunctions are the folders in which zsh looks for completions of packages.
var zshFunctions = map[string]string{"deb": "/usr/share/zsh/vendor-completions", "rpm": "/usr/share/zsh/site-functions"}

// zipped is a text as man expects it in a package.
func zipped(text []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // a level that exists
	_, _ = w.Write(text)                                  // a buffer takes it
	_ = w.Close()
	return b.Bytes()
}

// packaged are the files of a package.
func packaged(format string, b *built) []file {
	list := []file{
		{"/usr/bin/lapse", 0o755, b.binary},
		{"/usr/lib/systemd/system/lapse.service", 0o644, b.texts[unitFile]},
		{"/usr/lib/sysusers.d/lapse.conf", 0o644, b.texts[usersFile]},
		{"/etc/lapse/lapse.env", 0o600, b.texts[configFile]},
		{"/usr/share/bash-completion/completions/lapse", 0o644, b.completions["bash"]},
		{"/usr/share/fish/vendor_completions.d/lapse.fish", 0o644, b.completions["fish"]},
		{zshFunctions[format] + "/_lapse", 0o644, b.completions["zsh"]},
		{"/usr/share/man/man1/lapse.1.gz", 0o644, zipped(b.manual)},
		{"/usr/share/doc/lapse/copyright", 0o644, b.texts["LICENSE"]},
		{"/usr/share/doc/lapse/CHANGELOG.md", 0o644, b.texts["CHANGELOG.md"]},
	}
	for _, l := range b.licences {
		list = append(list, file{"/usr/share/doc/lapse/licenses/" + l.name, 0o644, l.text})
	}
	return list
}
