package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// checkAdapters makes sure that the adapters can be built by others once a tag is pushed: they
// require this version, and replace nothing. The tag of an adapter is its folder and the same
// version, such as adapters/nats/v1.2.3. A commit without a tag may require an older version.
func checkAdapters(ctx context.Context, src source) error {
	for _, dir := range adapters {
		text, err := src.file(ctx, dir+"/go.mod")
		if err != nil {
			return err
		}
		mod, err := modfile.Parse(dir+"/go.mod", text, nil)
		if err != nil {
			return err
		}
		if len(mod.Replace) > 0 {
			return fmt.Errorf("%s/go.mod replaces %s, which go get of another module ignores", dir, mod.Replace[0].Old.Path)
		}
		for _, r := range mod.Require {
			if r.Mod.Path == modulePath && src.tagged && r.Mod.Version != src.version {
				return fmt.Errorf("%s/go.mod requires %s, not %s: make release-prepare VERSION=%[3]s, and commit, before the tag", dir, r.Mod.Version, src.version)
			}
		}
	}
	return nil
}

// prepare makes the adapters require a version that is about to be released. The replacement in
// adapters/go.work follows, since that version is not published yet.
func prepare(repo, version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("-prepare: %q must be such as v1.2.3", version)
	}
	for _, dir := range adapters {
		name := filepath.Join(repo, filepath.FromSlash(dir), "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		mod, err := modfile.Parse(name, text, nil)
		if err != nil {
			return err
		}
		if err := mod.AddRequire(modulePath, version); err != nil {
			return err
		}
		if text, err = mod.Format(); err != nil {
			return err
		}
		if err := os.WriteFile(name, text, 0o644); err != nil {
			return err
		}
	}
	name := filepath.Join(repo, "adapters", "go.work")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	work, err := modfile.ParseWork(name, text, nil)
	if err != nil {
		return err
	}
	for _, r := range work.Replace {
		if r.Old.Path == modulePath {
			if err := work.DropReplace(r.Old.Path, r.Old.Version); err != nil {
				return err
			}
		}
	}
	if err := work.AddReplace(modulePath, version, "..", ""); err != nil {
		return err
	}
	work.Cleanup()
	return os.WriteFile(name, modfile.Format(work.Syntax), 0o644)
}
