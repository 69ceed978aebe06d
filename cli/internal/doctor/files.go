package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/lapsehq/lapse/internal/checkup"
)

// soonEnds is how long before its end a certificate is worth a warning.
const soonEnds = 14 * 24 * time.Hour

// Certificate looks at the certificate that the server shows. host is the name under which callers
// reach it; it may be empty.
func Certificate(cert, key, host string, now time.Time) checkup.Finding {
	const subject = "certificate"
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return checkup.Finding{Subject: subject, Verdict: checkup.Fail, Found: err.Error(), Do: "give --tls-cert and --tls-key that belong together, in PEM form"}
	}
	return certificate(pair.Leaf, host, now)
}

func certificate(leaf *x509.Certificate, host string, now time.Time) checkup.Finding {
	f := checkup.Good("certificate", fmt.Sprintf("valid until %s", leaf.NotAfter.UTC().Format("2006-01-02 15:04 UTC")))
	switch {
	case now.Before(leaf.NotBefore):
		f.Verdict, f.Found, f.Do = checkup.Fail, "not valid before "+leaf.NotBefore.UTC().Format("2006-01-02 15:04 UTC"), "check the clock, or renew it"
	case now.After(leaf.NotAfter):
		f.Verdict, f.Found, f.Do = checkup.Fail, "expired on "+leaf.NotAfter.UTC().Format("2006-01-02 15:04 UTC"), "renew it; SIGHUP makes a running server read it"
	case leaf.NotAfter.Sub(now) < soonEnds:
		f.Verdict, f.Do = checkup.Warn, "renew it; SIGHUP makes a running server read it"
	case host != "" && leaf.VerifyHostname(host) != nil:
		f.Verdict, f.Found, f.Do = checkup.Warn, f.Found+", and not for "+host, "callers that check the name refuse it: ask for one with this name"
	}
	return f
}

// A Guarded is a file that none but its owner may write, and none but its owner and its group may
// read, unless it is public.
type Guarded struct {
	Setting, Path string
	Public        bool // it may be read: it holds no secrets
}

// Exposed returns what other users can do with the file that they must not, and the command that
// prevents it; "" if there is nothing, or the file is no regular one.
func (g Guarded) Exposed(info fs.FileInfo) (found, do string) {
	barred, found, do := fs.FileMode(0o027), "access", "chmod g-w,o= "
	if g.Public {
		barred, found, do = 0o022, "write", "chmod go-w "
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&barred == 0 {
		return "", ""
	}
	return found, do + g.Path
}

// Modes looks at the mode of a file.
func (g Guarded) Modes() checkup.Finding {
	setting, file := g.Setting, g.Path
	info, err := os.Stat(file)
	if err != nil {
		return checkup.Finding{Subject: setting, Verdict: checkup.Fail, Found: err.Error(), Do: "name a file that the server can read with --" + setting}
	}
	if found, do := g.Exposed(info); do != "" {
		return checkup.Finding{Subject: setting, Verdict: checkup.Warn, Found: fmt.Sprintf("other users can %s %s (%v)", found, file, info.Mode().Perm()), Do: do}
	}
	return checkup.Good(setting, file)
}
