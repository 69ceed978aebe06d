package doctor

import "github.com/lapsehq/lapse/internal/checkup"

// Clock finds out whether the clock of the machine is kept in step with a time server.
func Clock() checkup.Finding {
	synced, known := clockSynced()
	return clock(synced, known)
}

func clock(synced, known bool) checkup.Finding {
	const subject = "clock"
	switch {
	case !known:
		return checkup.Finding{Subject: subject, Verdict: checkup.Unknown, Found: "the system does not tell whether a time server keeps it", Do: "run NTP: deadlines count by this clock"}
	case !synced:
		return checkup.Finding{Subject: subject, Verdict: checkup.Warn, Found: "no time server keeps it", Do: "run NTP (systemd-timesyncd, chrony): deadlines count by this clock"}
	}
	return checkup.Good(subject, "a time server keeps it")
}
