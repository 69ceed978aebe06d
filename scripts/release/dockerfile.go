package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// dockerFile is the one description of the image: docker build follows it, and a release too.
const dockerFile = "deploy/docker/Dockerfile"

// A recipe is what the Dockerfile says.
type recipe struct {
	build  string // the lines before the last stage
	config v1.Config
	copies []copied
}

// A copied file or folder of the last stage.
type copied struct {
	from, to string
	owner    int // user and group
}

// readDockerfile reads a Dockerfile whose last stage is FROM scratch, as far as ours goes. What it
// does not know is an error.
func readDockerfile(text []byte) (r recipe, err error) {
	r.config = v1.Config{Labels: map[string]string{}, Volumes: map[string]struct{}{}, ExposedPorts: map[string]struct{}{}}
	last := false
	for line := range strings.Lines(string(text)) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, value, _ := strings.Cut(rest, "=")
		switch {
		case verb == "" || strings.HasPrefix(verb, "#"):
		case verb == "FROM":
			last = rest == "scratch"
		case !last:
			r.build += line
		case verb == "COPY":
			err = r.addCopy(rest)
		case verb == "USER":
			r.config.User = rest
		case verb == "WORKDIR":
			r.config.WorkingDir = rest
		case verb == "ENV":
			r.config.Env = append(r.config.Env, rest)
		case verb == "LABEL":
			r.config.Labels[name] = strings.Trim(value, `"`)
		case verb == "VOLUME":
			r.config.Volumes[rest] = struct{}{}
		case verb == "EXPOSE":
			for port := range strings.FieldsSeq(rest) {
				r.config.ExposedPorts[port+"/tcp"] = struct{}{}
			}
		case verb == "STOPSIGNAL":
			r.config.StopSignal = rest
		case verb == "ENTRYPOINT":
			err = json.Unmarshal([]byte(rest), &r.config.Entrypoint)
		case verb == "CMD":
			err = json.Unmarshal([]byte(rest), &r.config.Cmd)
		case verb == "HEALTHCHECK":
			r.config.Healthcheck, err = readHealthcheck(rest)
		default:
			err = fmt.Errorf("%s is not known", verb)
		}
		if err != nil {
			return r, fmt.Errorf("%s: %q: %w", dockerFile, strings.TrimSpace(line), err)
		}
	}
	return r, nil
}

func (r *recipe) addCopy(rest string) error {
	c := copied{}
	var paths []string
	for word := range strings.FieldsSeq(rest) {
		switch {
		case strings.HasPrefix(word, "--chown="):
			var group int
			if n, err := fmt.Sscanf(word, "--chown=%d:%d", &c.owner, &group); n != 2 || err != nil || group != c.owner {
				return fmt.Errorf("want one number for user and group")
			}
		case !strings.HasPrefix(word, "--from="):
			paths = append(paths, word)
		}
	}
	if len(paths) != 2 {
		return fmt.Errorf("want one source and one destination")
	}
	c.from, c.to = paths[0], strings.TrimPrefix(paths[1], "/")
	r.copies = append(r.copies, c)
	return nil
}

func readHealthcheck(rest string) (*v1.HealthConfig, error) {
	options, words, found := strings.Cut(rest, " CMD ")
	if !found {
		return nil, fmt.Errorf("want CMD")
	}
	var h v1.HealthConfig
	set := flag.NewFlagSet("HEALTHCHECK", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.DurationVar(&h.Interval, "interval", 30*time.Second, "")
	set.DurationVar(&h.Timeout, "timeout", 30*time.Second, "")
	set.DurationVar(&h.StartPeriod, "start-period", 0, "")
	set.IntVar(&h.Retries, "retries", 3, "")
	if err := set.Parse(strings.Fields(options)); err != nil {
		return nil, err
	}
	var command []string
	err := json.Unmarshal([]byte(words), &command)
	h.Test = append([]string{"CMD"}, command...)
	return &h, err
}
