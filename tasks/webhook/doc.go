// Package webhook delivers tasks as HTTP requests: one POST an attempt, whose body is the payload
// byte for byte.
//
// A topic chooses it with {"kind": "webhook", "url": "https://shop.example/hooks/lapse"};
// settings.go has the other fields. docs/delivery.md describes an attempt and the meaning of its
// answers, under Webhook; in code it is headers.go and answer.go.
//
// Two things are not part of a topic, because callers that may read or set a topic's settings must
// not have them:
//
//   - secrets, with which requests are signed. Topics name them, the program has them
//     (Config.Secrets, Way.SetSecrets). Without the secret that its topic names, a request
//     is not sent.
//   - the addresses that may be reached (Config.Allow). Public ones may; all others, such as
//     this machine, its network and the metadata services of clouds, only if they are
//     listed. The address of a connection is checked when it is dialled, after DNS, so a
//     name may resolve to any address, and to another one a moment later. Redirects are not
//     followed and no proxy is asked.
//
// Way.Tally counts the attempts by outcome. Failures of DNS, of connecting, of TLS and of the
// address policy are separate outcomes. The task's last error has the failure as text.
package webhook
