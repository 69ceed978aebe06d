package doctor

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/cli/internal/socketfile"
	"github.com/lapsehq/lapse/internal/checkup"
)

// otherFiles is how many files a server has open beside its connections: those of the ledger and
// connections to Redis and to receivers of webhooks.
const otherFiles = 2048

// Files compares the limit of open files with the connections that the server accepts.
func Files(connections int) checkup.Finding {
	const subject = "open files"
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return checkup.Finding{Subject: subject, Verdict: checkup.Unknown, Found: err.Error(), Do: "see that as many files as connections may be open (ulimit -n)"}
	}
	return files(limit.Max, connections)
}

func files(most uint64, connections int) checkup.Finding {
	const subject = "open files"
	need := uint64(connections) + otherFiles
	found := fmt.Sprintf("%d may be open, %d are needed", most, need)
	if most >= 1<<62 {
		found = fmt.Sprintf("no limit, %d are needed", need)
	}
	if most < need {
		return checkup.Finding{Subject: subject, Verdict: checkup.Warn, Found: found,
			Do: fmt.Sprintf("raise the limit (LimitNOFILE=%d in the systemd unit, ulimit -n in a shell), or lower max-connections", need)}
	}
	return checkup.Good(subject, found)
}

// Memory compares what tasks may take with what the process may use; has is 0 if that is not known.
func Memory(maxBytes, has int64) checkup.Finding {
	const subject = "memory"
	found := fmt.Sprintf("tasks may take %d MiB", maxBytes>>20)
	switch {
	case has == 0:
		return checkup.Finding{Subject: subject, Verdict: checkup.Unknown, Found: found + "; how much there is is not known",
			Do: "set max-bytes to half of what this process may use"}
	case maxBytes > has/2:
		return checkup.Finding{Subject: subject, Verdict: checkup.Warn, Found: fmt.Sprintf("%s, this process %d MiB", found, has>>20),
			Do: fmt.Sprintf("set max-bytes to %d at most, and max-pending to what fits (about 600 bytes a task): past them callers get 429, past the memory the kernel ends the process", has/2)}
	}
	return checkup.Good(subject, fmt.Sprintf("%s, this process %d MiB", found, has>>20))
}

// Address finds out whether the server could listen.
func Address(setting, address string) checkup.Finding {
	listener, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		_ = listener.Close()
		return checkup.Good(setting, address+" is free")
	case errors.Is(err, syscall.EADDRINUSE):
		return checkup.Finding{Subject: setting, Verdict: checkup.Warn, Found: address + " is in use",
			Do: "nothing, if the server runs already; otherwise choose another --" + setting}
	}
	return checkup.Finding{Subject: setting, Verdict: checkup.Fail, Found: err.Error(), Do: "choose an address of this machine with --" + setting}
}

// RedisAddress finds out whether the server could listen for clients of Redis. open says that other
// machines can reach the address, and need no token.
func RedisAddress(setting, network, address string, open bool) checkup.Finding {
	f := checkup.Good(setting, address+" is free")
	listener, err := net.Listen(network, address)
	switch {
	case err == nil:
		_ = listener.Close()
	case network == "unix" && errors.Is(socketfile.Abandoned(address), socketfile.ErrNoSocket):
		return checkup.Finding{Subject: setting, Verdict: checkup.Fail, Found: address + ": " + socketfile.ErrNoSocket.Error(), Do: "choose another path with --" + setting}
	case errors.Is(err, syscall.EADDRINUSE):
		f = checkup.Finding{Subject: setting, Verdict: checkup.Warn, Found: address + " is in use; " + pinged(network, address),
			Do: "nothing, if the server runs already; otherwise choose another --" + setting}
	default:
		return checkup.Finding{Subject: setting, Verdict: checkup.Fail, Found: err.Error(), Do: "choose an address of this machine, or a path in a directory that the user of the server may write to, with --" + setting}
	}
	if open {
		f.Verdict, f.Found = checkup.Warn, f.Found+"; other machines can reach it, and no token is needed"
		f.Do = "set token-file, or listen on 127.0.0.1 or a socket file"
	}
	return f
}

// pinged says how what listens at an address answers PING.
func pinged(network, address string) string {
	const within = time.Second
	conn, err := net.DialTimeout(network, address, within)
	if err != nil {
		return "no process listens there any more, and the server will replace the file"
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(within))
	answer := make([]byte, 64)
	n := 0
	if _, err = conn.Write([]byte("PING\r\n")); err == nil {
		n, err = conn.Read(answer)
	}
	switch text := string(answer[:n]); {
	case strings.HasPrefix(text, "+PONG"), strings.HasPrefix(text, "-NOAUTH"):
		return "a server of the protocol of Redis answers there"
	case err != nil:
		return "what listens there does not answer PING: " + err.Error()
	}
	return "what listens there does not answer PING as a server of Redis"
}
