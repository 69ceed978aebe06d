package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
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

// Secret looks at the mode of a file with secrets.
func Secret(setting, file string) checkup.Finding {
	info, err := os.Stat(file)
	if err != nil {
		return checkup.Finding{Subject: setting, Verdict: checkup.Fail, Found: err.Error(), Do: "name a file that the server can read with --" + setting}
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		return checkup.Finding{Subject: setting, Verdict: checkup.Warn, Found: fmt.Sprintf("other users can access %s (%v)", file, info.Mode().Perm()), Do: "chmod 600 " + file}
	}
	return checkup.Good(setting, file)
}
