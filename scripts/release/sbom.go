package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// vendorFile lists what the dashboard takes from npm.
const vendorFile = "httpapi/pages/assets/vendor/README.md"

var vendored = regexp.MustCompile("(?m)^\\| `[\\w.]+` \\| `(\\w+)` ([\\d.]+),")

// writeBill writes a software bill of materials in the form of CycloneDX: the modules that the
// binary says it is made of, and the files of others that its dashboard has.
func (w *workshop) writeBill(ctx context.Context, to, binary, tools string, vendor []byte) (err error) {
	env := append(w.environ("install"), "GOFLAGS=-modcacherw")
	// The tool is built in its module, and looks up licences in the modules of the workshop.
	path, err := command(ctx, tools, nil, "go", "tool", "-n", "cyclonedx-gomod").Output()
	if err != nil {
		return failure(err, "go", []string{"tool", "-n", "cyclonedx-gomod"})
	}
	if err := run(ctx, w.dir, env, string(path[:len(path)-1]), "bin", "-json", "-licenses", "-noserial", "-notimestamp",
		"-version", w.src.version, "-output", to, binary); err != nil {
		return err
	}
	in, err := os.Open(to)
	if err != nil {
		return err
	}
	defer in.Close()
	var bill cdx.BOM
	if err := cdx.NewBOMDecoder(in, cdx.BOMFileFormatJSON).Decode(&bill); err != nil {
		return err
	}
	if bill.Components == nil {
		return fmt.Errorf("%s names no modules", to)
	}
	seen := map[string]bool{}
	for _, m := range vendored.FindAllStringSubmatch(string(vendor), -1) {
		purl := "pkg:npm/" + m[1] + "@" + m[2]
		if !seen[purl] {
			seen[purl] = true
			*bill.Components = append(*bill.Components, cdx.Component{
				BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m[1], Version: m[2], PackageURL: purl,
			})
		}
	}
	if len(seen) == 0 {
		return errors.New(vendorFile + " lists nothing")
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(&bill)
}
