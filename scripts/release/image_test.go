//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// readRecipe reads the Dockerfile, whose build is that of a release.
func readRecipe(t *testing.T) recipe {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", dockerFile))
	if err != nil {
		t.Fatal(err)
	}
	r, err := readDockerfile(text)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.build, "-tags "+tags+" -trimpath -ldflags '"+ldflags+"'") || !strings.Contains(r.build, "CGO_ENABLED=0") {
		t.Errorf("the image is built otherwise than the release:\n%s", r.build)
	}
	return r
}

// environ are the variables of an image.
func environ(c v1.Config) map[string]string {
	env := map[string]string{}
	for _, e := range c.Env {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env
}

// untar unpacks a tar below a directory, with the owners of its files.
func untar(t *testing.T, from io.Reader, dir string) {
	t.Helper()
	for all := tar.NewReader(from); ; {
		head, err := all.Next()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, head.Name)
		if head.Typeflag == tar.TypeDir {
			err = os.MkdirAll(to, head.FileInfo().Mode())
		} else {
			var text []byte
			if text, err = io.ReadAll(all); err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, head.FileInfo().Mode()))
			}
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(to, head.Uid, head.Gid)
		}
		if err != nil || !head.ModTime.Equal(madeRelease.source.time) {
			t.Fatalf("%s of %s: %v", head.Name, head.ModTime, err)
		}
	}
}

func theImage(t *testing.T) (path string) {
	t.Helper()
	return theFile(t, madeRelease.dist, "*.oci.tar")
}

// The tar is whole as what docker load reads, and as an OCI layout: both name one image, which says
// what it is. The same release makes the same bytes.
func TestImageIsWhole(t *testing.T) {
	t.Parallel()
	loaded, err := tarball.ImageFromPath(theImage(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(theImage(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	untar(t, bytes.NewReader(whole), dir)
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(validate.Image(loaded), validate.Index(index)); err != nil {
		t.Error(err)
	}
	list, err := index.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatal(list, err)
	}
	entry := list.Manifests[0]
	if entry.Platform.String() != native.os+"/"+native.arch || !entry.MediaType.IsImage() {
		t.Errorf("%+v", entry)
	}
	image, err := index.Image(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	one, err1 := loaded.ConfigName()
	other, err2 := image.ConfigName()
	if err1 != nil || err2 != nil || one != other {
		t.Errorf("docker load reads %s, OCI %s: %v, %v", one, other, err1, err2)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]string{"version": strings.TrimPrefix(testVersion, "v"), "revision": madeRelease.source.commit,
		"source": "https://" + modulePath, "licenses": "Apache-2.0"} {
		if got := config.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("%s is %q, want %q", label, got, want)
		}
	}

	files := unpack(t)
	b := built{binary: files["lapse"], texts: map[string][]byte{"LICENSE": files["LICENSE"]}}
	if b.texts[dockerFile], err = os.ReadFile(filepath.Join("../..", dockerFile)); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if rest, ok := strings.CutPrefix(name, "licenses/"); ok {
			b.licences = append(b.licences, licence{rest, files[name]})
		}
	}
	again := filepath.Join(t.TempDir(), "again.tar")
	if err := writeImage(again, madeRelease.source, native, &b); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(again); err != nil || !bytes.Equal(text, whole) {
		t.Errorf("made twice, the images differ: %d and %d bytes, %v", len(whole), len(text), err)
	}
}

// The image starts, as its user and with nothing else in its root. It wants tokens, since callers
// reach it from outside. The health check tells a server from none.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root")
	}
	image, err := tarball.ImageFromPath(theImage(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	root, config := t.TempDir(), file.Config
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range layers {
		text, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		untar(t, text, root)
		text.Close()
	}
	certificates, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil || !x509.NewCertPool().AppendCertsFromPEM(certificates) || bytes.Count(certificates, []byte("BEGIN")) < 100 {
		t.Errorf("it has no certificates: %d bytes, %v", len(certificates), err)
	}
	const uid = 65532
	if config.User != "65532:65532" {
		t.Fatalf("its user is %s", config.User)
	}
	makeToken(t, filepath.Join(root, config.Entrypoint[0]), root)
	// Other programs may have the ports of the image.
	listen, health, env := freeAddr(t), freeAddr(t), environ(config)
	ports := strings.NewReplacer(env["LAPSE_LISTEN"], listen, env["LAPSE_HEALTH_LISTEN"], health, "127.0.0.1:7490", health)
	inside := func(env []string, words ...string) *exec.Cmd {
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir = config.WorkingDir
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		for _, e := range config.Env {
			env = append(env, ports.Replace(e))
		}
		cmd.Env = env
		return cmd
	}
	check := slices.Clone(config.Healthcheck.Test[1:])
	for i := range check {
		check[i] = ports.Replace(check[i])
	}
	start := slices.Concat(config.Entrypoint, config.Cmd)

	refused := inside(nil, start...)
	for i, e := range refused.Env { // as in a container, where callers come from outside
		refused.Env[i] = strings.Replace(e, "127.0.0.1:", "0.0.0.0:", 1)
	}
	if out, err := refused.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("token-file")) {
		t.Errorf("without tokens: %v\n%s", err, out)
	}
	if out, err := inside(nil, check...).CombinedOutput(); err == nil {
		t.Errorf("without a server it is healthy: %s", out)
	}
	p := begin(t, inside([]string{"LAPSE_TOKEN_FILE=/tokens.yaml"}, start...))
	p.answers("http://" + health + "/readyz")
	if out, err := inside(nil, check...).CombinedOutput(); err != nil {
		t.Errorf("with a server: %v\n%s", err, out)
	}
	p.stop()

	// What docs/install.md starts to try it.
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(page), " lapse:0.1.0 dev ")
	line, _, _ = strings.Cut(line, "\n")
	if !found {
		t.Fatal("the page does not start lapse dev in a container")
	}
	trial := slices.Concat(config.Entrypoint, []string{"dev"}, strings.Fields(strings.Replace(line, "0.0.0.0:7479", freeAddr(t), 1)))
	p = begin(t, inside(nil, trial...))
	p.answers("http://" + listen + "/readyz")
	if out, err := inside(nil, check...).CombinedOutput(); err != nil {
		t.Errorf("with lapse dev: %v\n%s", err, out)
	}
	p.stop()
}

func TestDockerfileNotKnown(t *testing.T) {
	for line, want := range map[string]string{
		"RUN ls": "RUN is not known", "COPY a": "one source", "COPY --chown=1:2 a b": "one number", "HEALTHCHECK NONE": "want CMD", "CMD serve": "invalid",
	} {
		if _, err := readDockerfile([]byte("FROM scratch\n" + line + "\n")); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), line) {
			t.Errorf("%s: %v", line, err)
		}
	}
}
