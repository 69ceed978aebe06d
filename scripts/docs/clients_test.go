package docs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/evanw/esbuild/pkg/api"
)

// makeModules puts the client in TypeScript where Node looks for packages, as npm would: a module
// made of its sources. So programs of pages run without npm and its registry.
func makeModules(dir string) error {
	from, err := filepath.Abs(filepath.Join(root, "clients", "typescript", "src", "index.ts"))
	if err != nil {
		return err
	}
	made := api.Build(api.BuildOptions{
		EntryPoints: []string{from}, Bundle: true, Format: api.FormatESModule, Platform: api.PlatformNeutral, Target: api.ES2022,
		External: []string{"node:*"},
	})
	if len(made.Errors) > 0 {
		return errors.New("clients/typescript: " + made.Errors[0].Text)
	}
	of := filepath.Join(dir, "node_modules", "@lapsehq", "lapse")
	if err := os.MkdirAll(of, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(of, "index.js"), made.OutputFiles[0].Contents, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(of, "package.json"), fmt.Appendf(nil, `{"name":"@lapsehq/lapse","type":"module","exports":"./index.js"}`), 0o600)
}
