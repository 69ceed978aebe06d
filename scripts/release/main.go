package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if err := runFlags(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func runFlags() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	repo := flag.String("repo", "../..", "root of the repository")
	revision := flag.String("revision", "HEAD", "what to release: a tag, or a commit")
	out := flag.String("out", "../../dist", "directory to write to; what is in it is removed")
	targets := flag.String("targets", "", "such as linux/amd64,darwin/arm64; all four without it")
	next := flag.String("prepare", "", "make the adapters require this version, which is about to be released, and do nothing else")
	flag.Parse()
	if *next != "" {
		return prepare(*repo, *next)
	}
	return release(ctx, *repo, *revision, *out, *targets)
}

// Files of the repository that a release contains.
const (
	unitFile   = "scripts/systemd/lapse.service"
	usersFile  = "scripts/systemd/lapse.sysusers"
	configFile = "scripts/systemd/lapse.env"
)

var (
	textFiles   = []string{"LICENSE", "README.md", "CHANGELOG.md", unitFile, usersFile, configFile, vendorFile, dockerFile}
	scriptFiles = []string{postinstall, preremove, postremove}
	shells      = []string{"bash", "zsh", "fish"}
	adapters    = []string{"adapters/nats", "adapters/rabbitmq", "adapters/kafka"}
)

// built is what a release of one target consists of.
type built struct {
	binary      []byte
	texts       map[string][]byte // by their path in the repository
	scripts     map[string][]byte
	completions map[string][]byte // by shell
	manual      []byte
	licences    []licence
}

// release makes all files, and prints their names. Error errNoTools: all but what it names was
// made.
func release(ctx context.Context, repo, revision, out, targetList string) (err error) {
	targets, err := parseTargets(targetList)
	if err != nil {
		return err
	}
	if repo, err = filepath.Abs(repo); err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	src, err := readSource(ctx, repo, revision)
	if err != nil {
		return err
	}
	if err := checkAdapters(ctx, src); err != nil {
		return err
	}
	// nfpm reads it.
	if err := os.Setenv("SOURCE_DATE_EPOCH", fmt.Sprint(src.time.Unix())); err != nil {
		return err
	}
	fmt.Println("lapse", src.version, "of commit", src.commit)
	dir, err := os.MkdirTemp("", "lapse-release-")
	if err != nil {
		return err
	}
	w, err := newWorkshop(ctx, src, dir, "")
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() { err = errors.Join(err, w.clean()) }()
	if err := w.verify(ctx); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return err
	}
	common, err := w.common(ctx)
	if err != nil {
		return err
	}
	for _, t := range targets {
		if err := w.releaseTarget(ctx, out, filepath.Join(repo, "scripts", "release"), t, common); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	if err := errors.Join(writeChart(ctx, out, src), writeFormula(out, src, targets)); err != nil {
		return err
	}
	lacks := w.writeClients(ctx, out)
	if lacks != nil && !errors.Is(lacks, errNoTools) {
		return lacks
	}
	if err := writeChecksums(out, "SHA256SUMS"); err != nil {
		return err
	}
	entries, err := os.ReadDir(out)
	for _, e := range entries {
		fmt.Println(" ", e.Name())
	}
	return errors.Join(err, lacks)
}

// common is what the targets have in common.
func (w *workshop) common(ctx context.Context) (b built, err error) {
	b = built{texts: map[string][]byte{}, scripts: map[string][]byte{}, completions: map[string][]byte{}}
	for _, name := range textFiles {
		if b.texts[name], err = w.src.file(ctx, name); err != nil {
			return b, err
		}
	}
	for _, name := range scriptFiles {
		if b.scripts[name], err = w.src.file(ctx, "scripts/release/package/"+name); err != nil {
			return b, err
		}
	}
	native, err := w.native(ctx)
	if err != nil {
		return b, err
	}
	for _, shell := range shells {
		args := []string{"completion", shell}
		if b.completions[shell], err = command(ctx, w.dir, nil, native, args...).Output(); err != nil {
			return b, failure(err, native, args)
		}
	}
	b.manual, err = command(ctx, w.dir, nil, native, "man").Output()
	return b, failure(err, native, []string{"man"})
}

// releaseTarget makes the files of one target.
func (w *workshop) releaseTarget(ctx context.Context, out, tools string, t target, b built) error {
	binary, err := w.install(ctx, "install", t)
	if err != nil {
		return err
	}
	if b.binary, err = os.ReadFile(binary); err != nil {
		return err
	}
	if b.licences, err = w.licences(ctx, t); err != nil {
		return err
	}
	b.licences = append(b.licences, licence{"dashboard/README.md", b.texts[vendorFile]})
	name := archiveName(w.src.bare(), t)
	if err := writeArchive(filepath.Join(out, name+".tar.gz"), archived(name, &b), w.src.time); err != nil {
		return err
	}
	if err := w.writeBill(ctx, filepath.Join(out, name+".cdx.json"), binary, tools, b.texts[vendorFile]); err != nil {
		return err
	}
	if t.os != "linux" {
		return nil
	}
	for _, format := range packageFormats {
		if err := writePackage(out, format, w.src, t, &b); err != nil {
			return err
		}
	}
	return writeImage(filepath.Join(out, imageName(w.src.bare(), t)), w.src, t, &b)
}
