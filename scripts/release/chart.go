package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// chartFolder has the Helm chart; deploy/kubernetes is what it renders without further values.
const chartFolder = "deploy/helm/lapse"

// writeChart packages the chart, as helm package does, with the version of the release.
func writeChart(ctx context.Context, out string, src source) error {
	names, err := src.git(ctx, "ls-tree", "-r", "--name-only", "--full-tree", src.commit, chartFolder+"/")
	if err != nil {
		return err
	}
	files := []file{}
	for name := range strings.FieldsSeq(names) {
		text, err := src.file(ctx, name)
		if err != nil {
			return err
		}
		if name == chartFolder+"/Chart.yaml" {
			before := []byte(`ersion: "0.0.0"`) // of the chart, and of its program
			if bytes.Count(text, before) != 2 {
				return fmt.Errorf("%s: want two versions 0.0.0", name)
			}
			text = bytes.ReplaceAll(text, before, fmt.Appendf(nil, "ersion: %q", src.bare()))
		}
		files = append(files, file{"lapse" + strings.TrimPrefix(name, chartFolder), 0o644, text})
	}
	licence, err := src.file(ctx, "LICENSE")
	if err != nil {
		return err
	}
	files = append(files, file{"lapse/LICENSE", 0o644, licence})
	return writeArchive(filepath.Join(out, "lapse-"+src.bare()+".tgz"), files, src.time)
}
