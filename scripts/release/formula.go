package main

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed formula.rb.tmpl
var formulaText string

// homebrewOS and homebrewArch are the blocks of a formula.
var (
	homebrewOS   = map[string]string{"darwin": "macos", "linux": "linux"}
	homebrewArch = map[string]string{"amd64": "intel", "arm64": "arm"}
)

// writeFormula writes the formula for Homebrew, with the checksums of the archives in a directory.
func writeFormula(out string, src source, targets []target) (err error) {
	type bottle struct{ Arch, URL, Sum string }
	systems := map[string][]bottle{}
	for _, t := range targets {
		name := archiveName(src.bare(), t) + ".tar.gz"
		sum, err := digest(filepath.Join(out, name))
		if err != nil {
			return err
		}
		system := homebrewOS[t.os]
		systems[system] = append(systems[system], bottle{homebrewArch[t.arch], "https://" + modulePath + "/releases/download/" + src.version + "/" + name, sum})
	}
	made, err := template.New("formula").Parse(formulaText)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(out, "lapse.rb"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return made.Execute(f, map[string]any{"Version": src.bare(), "Home": "https://" + modulePath, "Systems": systems})
}
