// Command walk counts the code of tasks/** that one task passes on one node: scheduled over HTTP,
// due a little later, pulled by a receiver that waits, acknowledged; with the ledger on the disk.
//
// It builds the server with coverage, and runs it twice: one server idles, through the other one
// the task passes. A function counts if the second server has entered it and the first has not, and
// a file if it has such a function. So start, sweep and shutdown do not count.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/client"
)

const module = "github.com/lapsehq/lapse"

func main() {
	idle := flag.Duration("idle", 5*time.Second, "how long the idle server runs")
	list := flag.Bool("list", false, "name the functions")
	flag.Parse()
	if err := walk(context.Background(), *idle, *list); err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

func walk(ctx context.Context, idle time.Duration, list bool) error {
	dir, err := os.MkdirTemp("", "lapse-walk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "lapse")
	// Without coverage of package main, the program writes none at its end.
	covered := module + "/tasks/...," + module
	if _, err := output("go", "build", "-tags", "nomsgpack", "-cover", "-coverpkg="+covered, "-o", program, module); err != nil {
		return err
	}
	still, err := entered(ctx, program, filepath.Join(dir, "idle"), func(*client.Client) error {
		time.Sleep(idle) // it sweeps meanwhile
		return nil
	})
	if err != nil {
		return err
	}
	passed, err := entered(ctx, program, filepath.Join(dir, "task"), func(c *client.Client) error { return pass(ctx, c) })
	if err != nil {
		return err
	}
	maps.DeleteFunc(passed, func(place, _ string) bool { return still[place] != "" })
	files := map[string]bool{}
	for _, place := range slices.Sorted(maps.Keys(passed)) {
		file, _, _ := strings.Cut(place, ":")
		files[file] = true
		if list {
			fmt.Printf("%s: %s\n", place, passed[place])
		}
	}
	fmt.Printf("One task passes %d files and %d functions of tasks/** that an idle server does not; the aim is 30 and 120.\n", len(files), len(passed))
	return nil
}

// pass has one task pass the server.
func pass(ctx context.Context, c *client.Client) error {
	const topic = "walk"
	if _, err := c.Schedule(ctx, client.Request{Topic: topic, Delay: time.Second, Payload: []byte(`{"order":42}`)}); err != nil {
		return err
	}
	deliveries, err := c.Reserve(ctx, topic, client.Reservation{Wait: time.Minute})
	if err != nil {
		return err
	}
	if len(deliveries) != 1 {
		return fmt.Errorf("%d deliveries", len(deliveries))
	}
	settled, err := c.Ack(ctx, deliveries[0].Receipt)
	if err == nil && settled.Settled != 1 {
		err = fmt.Errorf("the acknowledgement is answered %+v", settled)
	}
	return err
}

// entered runs a server while meanwhile runs, and returns the functions that it has entered: their
// names by file and line.
func entered(ctx context.Context, program, dir string, meanwhile func(*client.Client) error) (map[string]string, error) {
	coverage, profile := filepath.Join(dir, "coverage"), filepath.Join(dir, "profile")
	if err := os.MkdirAll(coverage, 0o700); err != nil {
		return nil, err
	}
	if err := serve(ctx, program, dir, coverage, meanwhile); err != nil {
		return nil, err
	}
	if _, err := output("go", "tool", "covdata", "textfmt", "-i="+coverage, "-o="+profile); err != nil {
		return nil, err
	}
	text, err := output("go", "tool", "cover", "-func="+profile)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for line := range strings.Lines(string(text)) { // github.com/.../create.go:21:  Create  87.5%
		if of := strings.Fields(line); len(of) == 3 && strings.HasPrefix(of[0], module+"/tasks/") && of[2] != "0.0%" {
			names[strings.TrimSuffix(strings.TrimPrefix(of[0], module+"/"), ":")] = of[1]
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the server has entered no function")
	}
	return names, nil
}

var address = regexp.MustCompile(`http://[\w.:]+`)

// serve runs a server until meanwhile returns. The server writes its coverage at its end.
func serve(ctx context.Context, program, dir, coverage string, meanwhile func(*client.Client) error) (err error) {
	cmd := exec.CommandContext(ctx, program, "serve")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "LAPSE_") }),
		"GOCOVERDIR="+coverage, "LAPSE_LISTEN=127.0.0.1:0", "LAPSE_DATA="+filepath.Join(dir, "data"))
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	said := bufio.NewScanner(out)
	url := ""
	for url == "" && said.Scan() {
		url = address.FindString(said.Text())
	}
	if url == "" {
		err = errors.New("the server does not say where it listens")
	} else {
		err = used(ctx, url, meanwhile)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	for said.Scan() { // Wait closes the pipe
	}
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("%w\n%s", err, log.Bytes())
	}
	return nil
}

// used waits until the server is ready, and calls meanwhile.
func used(ctx context.Context, url string, meanwhile func(*client.Client) error) error {
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if _, err := c.Ready(ctx); err == nil {
			return meanwhile(c)
		} else if ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func output(name string, args ...string) ([]byte, error) {
	var said bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{name}, args...), " "), err, said.Bytes())
	}
	return out, nil
}
