// Package webhook delivers tasks as HTTP requests: one POST an attempt, whose body is the
// payload byte for byte.
//
// A topic chooses it with {"kind": "webhook", "url": "https://shop.example/hooks/lapse"}, and
// settings.go says what else may stand there. What an attempt looks like and what its
// answers mean is told in docs/delivery.md, under Webhook; in code it is headers.go and
// answer.go.
//
// Two things are kept out of topics, because whoever may read or set a topic's settings must
// not have them:
//
//   - secrets, with which requests are signed. Topics name them, the program has them
//     (Config.Secrets, Way.SetSecrets). Without the secret that its topic names, a request
//     is not sent.
//   - which addresses may be reached (Config.Allow). Public ones may; all others, such as
//     this machine, its network and the metadata services of clouds, only if they are
//     listed. The address of a connection is checked when it is dialled, after DNS, so a
//     name may resolve to whatever it likes, and to something else a moment later.
//     Redirects are not followed and no proxy is asked.
//
// What can fail is counted by outcome (Way.Tally), with failures of DNS, of connecting, of
// TLS and of the address policy told apart, and stands as text in the task's last error.
package webhook
