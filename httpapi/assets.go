package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"
)

// The pages for people, and under pages/assets what they load. They load nothing from other
// servers, and nothing builds them: a browser runs the modules as they stand there. (They are no
// templates of html/template, which finds methods by name at run time: that makes the linker keep
// every exported method of the program.)
//
//go:embed pages
var pageFiles embed.FS

func pageFile(name string) string {
	text, _ := pageFiles.ReadFile("pages/" + name) // embedded: it is there
	return string(text)
}

// assetMedia are the media types of what pages load. A file with another ending is not served.
var assetMedia = map[string]string{
	".js":  "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8",
	".svg": "image/svg+xml",
}

// An asset is a file that pages load.
type asset struct {
	media         string
	plain, packed []byte // packed by gzip
}

// assets are all files that pages load. Their URLs have the name of the build in them, which is a
// digest of them all. A browser may so keep each for ever, and a module finds the others of its
// build by relative URLs.
type assets struct {
	build string
	files map[string]asset // by path below pages/assets
}

// pageAssets reads and packs the assets when a page first needs them.
var pageAssets = sync.OnceValue(func() *assets {
	a := &assets{files: make(map[string]asset)}
	digest := sha256.New()
	_ = fs.WalkDir(pageFiles, "pages/assets", func(name string, d fs.DirEntry, _ error) error {
		media, served := assetMedia[path.Ext(name)]
		if d.IsDir() || !served {
			return nil
		}
		plain, _ := pageFiles.ReadFile(name)
		name = strings.TrimPrefix(name, "pages/assets/")
		_, _ = digest.Write(append([]byte(name+"\x00"), plain...))
		a.files[name] = asset{media, plain, packed(plain)}
		return nil
	})
	a.build = hex.EncodeToString(digest.Sum(nil)[:6])
	return a
})

func packed(plain []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is a valid one
	_, _ = w.Write(plain)                                 // to memory: it cannot fail
	_ = w.Close()
	return b.Bytes()
}

// serveAsset answers GET /assets/{build}/{file}. During a rolling upgrade the page may come from
// another node than its assets. A file that is asked for by the name of another build is answered
// as this one has it, and not kept.
func serveAsset(c *gin.Context) {
	all := pageAssets()
	file, found := all.files[strings.TrimPrefix(c.Param("file"), "/")]
	if !found {
		noRoute(c)
		return
	}
	c.Header("Cache-Control", "no-store")
	if c.Param("build") == all.build {
		c.Header("Cache-Control", "public, max-age=31536000, immutable")
	}
	c.Header("Vary", "Accept-Encoding")
	content := file.plain
	if acceptsGzip(c.GetHeader("Accept-Encoding")) {
		c.Header("Content-Encoding", "gzip")
		content = file.packed
	}
	c.Data(http.StatusOK, file.media, content)
}

// acceptsGzip reports whether an Accept-Encoding names gzip, and not with a weight of zero.
func acceptsGzip(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			return !hasZeroWeight(params)
		}
	}
	return false
}
