// Command helm renders and lints a chart with the packages of Helm, as helm template and helm lint
// do, for the tests of the release. It is a module of its own, since Helm links what talks to a
// cluster.
//
//	go run . CHART <installs.json
//
// CHART is a folder or a package. Standard input is a list of installs, standard output that of
// their results.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
)

// An install is what a user types behind helm install.
type install struct {
	Release string         `json:"release"`
	Values  map[string]any `json:"values"`
}

// A result is what Helm makes of an install: an error, or the rendered templates by their path, and
// what lint says of them.
type result struct {
	Error string            `json:"error,omitempty"`
	Files map[string]string `json:"files,omitempty"`
	Lint  []string          `json:"lint,omitempty"`
}

func main() {
	if err := answer(); err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

func answer() (err error) {
	if len(os.Args) != 2 {
		return errors.New("want one chart")
	}
	var installs []install
	if err := json.NewDecoder(os.Stdin).Decode(&installs); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "lapse-chart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	dir := os.Args[1]
	if filepath.Ext(dir) == ".tgz" { // lint wants a folder
		if err := chartutil.ExpandFile(work, dir); err != nil {
			return err
		}
		dir = filepath.Join(work, "lapse")
	}
	results := make([]result, len(installs))
	for i, in := range installs {
		results[i].Files, err = render(os.Args[1], in)
		if err != nil {
			results[i].Error = err.Error()
		}
		for _, m := range lint.RunAll(dir, in.Values, "default").Messages {
			if m.Severity >= support.WarningSev {
				results[i].Lint = append(results[i].Lint, m.Error())
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}

func render(path string, in install) (map[string]string, error) {
	chart, err := loader.Load(path)
	if err != nil {
		return nil, err
	}
	options := common.ReleaseOptions{Name: in.Release, Namespace: "default", Revision: 1, IsInstall: true}
	values, err := util.ToRenderValues(chart, in.Values, options, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, values)
}
