package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// writeImage writes the image of a target as one tar that docker load and podman load read, and
// that is an OCI image layout as well. Its bytes follow from the commit alone: the certificates
// are those of a module that go.sum pins, not those of this machine.
func writeImage(to string, src source, t target, b *built) error {
	image, err := makeImage(src, t, b)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lapse-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	name := "lapse:" + src.bare()
	if err := at.AppendImage(image, layout.WithPlatform(v1.Platform{OS: t.os, Architecture: t.arch}), layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": src.bare(), "io.containerd.image.name": "docker.io/library/" + name,
	})); err != nil {
		return err
	}
	if err := writeDockerManifest(filepath.Join(dir, "manifest.json"), image, name); err != nil {
		return err
	}
	return tarFolder(to, dir, src.time)
}

// imageName is the name of the file with the image of a target.
func imageName(version string, t target) string { return archiveName(version, t) + ".oci.tar" }

func makeImage(src source, t target, b *built) (v1.Image, error) {
	r, err := readDockerfile(b.texts[dockerFile])
	if err != nil {
		return nil, err
	}
	maps.Copy(r.config.Labels, map[string]string{
		"org.opencontainers.image.version": src.bare(), "org.opencontainers.image.revision": src.commit,
		"org.opencontainers.image.created": src.time.Format(time.RFC3339),
	})
	rest, program, err := r.layers(src.time, b)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	when := v1.Time{Time: src.time}
	// What changes with each version is the last layer.
	for _, text := range [][]byte{rest, program} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil },
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: when, CreatedBy: "make release"}}); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created, config.Config = t.os, t.arch, when, r.config
	return mutate.ConfigFile(image, config)
}

// layers returns the tars of what the Dockerfile copies, and of the licences of what is linked in:
// the program is in the second one.
func (r *recipe) layers(when time.Time, b *built) (rest, program []byte, err error) {
	var others, binary layerTar
	for _, c := range r.copies {
		switch c.from {
		case "/out/lapse":
			binary.file(c.to, 0o755, b.binary)
		case "/out/ca-certificates.crt":
			others.file(c.to, 0o644, authorities())
		case "/out/data":
			others.folder(c.to, c.owner)
		case "LICENSE":
			others.file(c.to, 0o644, b.texts["LICENSE"])
		default:
			return nil, nil, fmt.Errorf("%s: there is no %s", dockerFile, c.from)
		}
	}
	for _, l := range b.licences {
		others.file("usr/share/doc/lapse/licenses/"+l.name, 0o644, l.text)
	}
	if rest, err = others.bytes(when); err != nil {
		return nil, nil, err
	}
	program, err = binary.bytes(when)
	return rest, program, err
}

// A layerTar has files and folders by their path.
type layerTar map[string]entry

type entry struct {
	tar.Header
	text []byte
}

func (l *layerTar) add(name string, head tar.Header, text []byte) {
	if *l == nil {
		*l = layerTar{}
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, there := (*l)[dir]; !there {
			(*l)[dir] = entry{tar.Header{Name: dir + "/", Mode: 0o755, Typeflag: tar.TypeDir}, nil}
		}
	}
	(*l)[name] = entry{head, text}
}

func (l *layerTar) file(name string, mode int64, text []byte) {
	l.add(name, tar.Header{Name: name, Mode: mode, Size: int64(len(text)), Typeflag: tar.TypeReg}, text)
}

func (l *layerTar) folder(name string, owner int) {
	l.add(name, tar.Header{Name: name + "/", Mode: 0o755, Typeflag: tar.TypeDir, Uid: owner, Gid: owner}, nil)
}

func (l *layerTar) bytes(when time.Time) ([]byte, error) {
	var b bytes.Buffer
	err := writeEntries(&b, slices.SortedFunc(maps.Values(*l), func(a, b entry) int { return strings.Compare(a.Name, b.Name) }), when)
	return b.Bytes(), err
}

func writeEntries(to io.Writer, entries []entry, when time.Time) error {
	all := tar.NewWriter(to)
	for _, e := range entries {
		e.ModTime, e.Format = when, tar.FormatPAX
		if err := all.WriteHeader(&e.Header); err != nil {
			return err
		}
		if _, err := all.Write(e.text); err != nil {
			return err
		}
	}
	return all.Close()
}

// authorities are the certificates of public authorities that Mozilla trusts.
func authorities() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
	}
	return b.Bytes()
}

// writeDockerManifest writes what docker load reads, about the blobs of the layout.
func writeDockerManifest(to string, image v1.Image, name string) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }
	d := tarball.Descriptor{Config: blob(manifest.Config.Digest), RepoTags: []string{name}}
	for _, l := range manifest.Layers {
		d.Layers = append(d.Layers, blob(l.Digest))
	}
	text, err := json.Marshal(tarball.Manifest{d})
	return errors.Join(err, os.WriteFile(to, text, 0o644))
}

// tarFolder writes the files of a folder into a tar.
func tarFolder(to, dir string, when time.Time) error {
	var l layerTar
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, at)
		l.file(filepath.ToSlash(name), 0o644, text)
		return err
	})
	if err != nil {
		return err
	}
	text, err := l.bytes(when)
	return errors.Join(err, os.WriteFile(to, text, 0o644))
}
