package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/lapsehq/lapse/internal/checkup"
)

const (
	// leastFree is what the ledger keeps free: below it, it takes no new tasks.
	leastFree = 256 << 20
	// littleFree is what an operator should act on.
	littleFree = 4 * leastFree
	// syncs is how often the time of a sync is measured, at most for syncsWithin.
	syncs, syncsWithin = 50, 5 * time.Second
	// slowSync is a time of a sync from which on single schedules are slow.
	slowSync = 20 * time.Millisecond
)

// Disk looks at the directory of a setting, in which tasks are to be kept: its mode, the disk that
// it is on, and how long a synced write takes there.
func Disk(setting, dir string) (findings []checkup.Finding) {
	add := func(v checkup.Verdict, subject, found, do string) {
		findings = append(findings, checkup.Finding{Subject: setting + " " + subject, Verdict: v, Found: found, Do: do})
	}
	where, info, err := existing(dir)
	switch {
	case err != nil:
		add(checkup.Fail, "directory", err.Error(), "choose another --"+setting)
		return findings
	case !info.IsDir():
		add(checkup.Fail, "directory", where+" is no directory", "choose another --"+setting)
		return findings
	case where != filepath.Clean(dir):
		add(checkup.OK, "directory", dir+" will be made", "")
	case info.Mode().Perm()&0o077 != 0:
		add(checkup.Warn, "directory", fmt.Sprintf("other users can open %s (%v)", dir, info.Mode().Perm()), "chmod 700 "+dir)
	default:
		add(checkup.OK, "directory", dir, "")
	}
	kind, free, err := storage(where)
	if err != nil {
		add(checkup.Unknown, "disk", err.Error(), fmt.Sprintf("see that it is a local disk with more than %d MiB free", littleFree>>20))
	} else {
		findings = append(findings, disk(setting, kind, free))
	}
	return append(findings, speed(setting, where))
}

// disk judges the kind of a file system and its free bytes.
func disk(setting, kind string, free uint64) checkup.Finding {
	f := checkup.Good(setting+" disk", fmt.Sprintf("%d MiB are free", free>>20))
	switch {
	case kind == "tmpfs", kind == "ramfs":
		f.Verdict, f.Found, f.Do = checkup.Fail, f.Found+", in memory ("+kind+")", "choose a directory on a disk: a restart of the machine loses all tasks here"
	case free < leastFree:
		f.Verdict, f.Do = checkup.Fail, fmt.Sprintf("make room: below %d MiB new tasks are refused", leastFree>>20)
	case free < littleFree:
		f.Verdict, f.Do = checkup.Warn, fmt.Sprintf("make room: below %d MiB new tasks are refused", leastFree>>20)
	case kind == "overlay":
		f.Verdict, f.Found, f.Do = checkup.Warn, f.Found+", in a container's own layer", "mount a volume: this layer is gone with the container"
	case kind != "":
		f.Verdict, f.Found, f.Do = checkup.Warn, f.Found+", over the network or a program ("+kind+")", "prefer a local disk: a sync here may be slow, or no sync at all"
	}
	return f
}

// existing returns the directory, or the nearest one above it that exists.
func existing(dir string) (string, os.FileInfo, error) {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil || !os.IsNotExist(err) || dir == filepath.Dir(dir) {
			return dir, info, err
		}
	}
}

// speed measures synced writes of a page, in a file of its own.
func speed(setting, dir string) checkup.Finding {
	f := checkup.Finding{Subject: setting + " sync", Verdict: checkup.Fail, Do: "let the user of the server write there, or choose another --" + setting}
	file, err := os.CreateTemp(dir, ".lapse-doctor-*")
	if err != nil {
		f.Found = err.Error()
		return f
	}
	defer os.Remove(file.Name())
	defer file.Close()
	page := make([]byte, 4096)
	var all []time.Duration
	for begun := time.Now(); len(all) < syncs && time.Since(begun) < syncsWithin; {
		began := time.Now()
		if _, err := file.Write(page); err != nil {
			f.Found = err.Error()
			return f
		}
		if err := file.Sync(); err != nil {
			f.Found = err.Error()
			return f
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return syncTimes(setting, all[len(all)/2], all[len(all)-1], len(all))
}

func syncTimes(setting string, median, worst time.Duration, n int) checkup.Finding {
	f := checkup.Good(setting+" sync", fmt.Sprintf("%v in the middle, %v at most, of %d synced writes", median.Round(10*time.Microsecond), worst.Round(10*time.Microsecond), n))
	switch {
	case median > slowSync:
		f.Verdict, f.Do = checkup.Warn, "a lone caller waits that long for each task: use a local SSD, or schedule in batches"
	case median < 20*time.Microsecond:
		f.Verdict, f.Do = checkup.Warn, "no disk is so fast: the write may be in a cache that a loss of power empties"
	}
	return f
}
