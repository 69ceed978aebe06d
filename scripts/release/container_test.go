//go:build linux

package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// manifests returns the files that the kustomization lists.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	const dir = "../../deploy/kubernetes"
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Resources []string }
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range list.Resources {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !*update {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	return files
}

// What the manifests describe is what Kubernetes knows, and fits together.
func TestManifests(t *testing.T) {
	d := decode(t, manifests(t))
	d.check(t)
	if d.policy == nil {
		t.Error("there is no network policy")
	}
	if at, err := exec.LookPath("kubectl"); err == nil {
		out := output(t, "../..", nil, at, "kustomize", "deploy/kubernetes")
		if !strings.Contains(out, "kind: StatefulSet") || !strings.Contains(out, "image: lapse:0.1.0\n") {
			t.Error(out)
		}
	}
}

// podEnv is the environment of one pod, with the secret and the addresses of a test.
func podEnv(t *testing.T, c *corev1.Container, name string, secret map[string]string, change func(string) string) []string {
	t.Helper()
	values := map[string]string{}
	var env []string
	for _, e := range c.Env {
		value := e.Value
		switch from := e.ValueFrom; {
		case from == nil:
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.name":
			value = name
		case from.SecretKeyRef != nil:
			value = secret[from.SecretKeyRef.Key]
		}
		value = regexp.MustCompile(`\$\((\w+)\)`).ReplaceAllStringFunc(value, func(v string) string { return values[v[2:len(v)-1]] })
		if values[e.Name] = change(value); values[e.Name] == "" {
			t.Errorf("%s has no value", e.Name)
		}
		env = append(env, e.Name+"="+values[e.Name])
	}
	return env
}

// Two pods of the manifests, as processes: their probes are answered, and what preStop and SIGTERM
// do hands over what one holds to the other, in the order of a pod that is deleted.
func TestPods(t *testing.T) {
	set := decode(t, manifests(t)).set
	c := &set.Spec.Template.Spec.Containers[0]
	binary, redis, dir := unpackBinary(t), startRedis(t), t.TempDir()
	tokens, token := makeToken(t, binary, dir)
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	files := strings.NewReplacer("/etc/lapse/tokens.yaml", tokens, "/etc/lapse/token", filepath.Join(dir, "token"))
	m := readRecipe(t)
	secret := map[string]string{"redis": redis}
	type pod struct {
		*process
		env            []string
		listen, health string
	}
	pods := make([]pod, 2)
	for i := range pods {
		p := &pods[i]
		name := set.Name + "-" + string('0'+rune(i))
		p.listen, p.health = freeAddr(t), freeAddr(t)
		p.env = podEnv(t, c, name, secret, strings.NewReplacer("/etc/lapse/tokens.yaml", tokens,
			"/var/lib/lapse", filepath.Join(dir, name), name+".lapse-nodes:7480", p.listen).Replace)
		p.env = append(p.env, "LAPSE_LISTEN="+p.listen, "LAPSE_HEALTH_LISTEN="+p.health)
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(binary, c.Args...)
		cmd.Env = p.env
		p.process = begin(t, cmd)
	}
	if environ(m.config)["LAPSE_HEALTH_LISTEN"] != "0.0.0.0:7490" || c.LivenessProbe.HTTPGet.Port.StrVal != "health" {
		t.Error("the probes do not go to the port of --health-listen")
	}
	for _, p := range pods {
		p.answers("http://" + p.health + c.LivenessProbe.HTTPGet.Path)
		p.answers("http://" + p.health + c.ReadinessProbe.HTTPGet.Path)
	}
	client := func(p pod, args ...string) string {
		t.Helper()
		return output(t, dir, append(p.env, "LAPSE_SERVER=http://"+p.listen, "LAPSE_TOKEN_FROM="+filepath.Join(dir, "token")), binary, args...)
	}
	client(pods[0], "schedule", "x", "--id", "kept", "--delay", "1h")

	hook := slices.Clone(c.Lifecycle.PreStop.Exec.Command)
	if hook[0] != m.config.Entrypoint[0] {
		t.Errorf("preStop runs %s, which the image does not have", hook[0])
	}
	for i, word := range hook {
		hook[i] = files.Replace(word)
	}
	if out := output(t, dir, append(pods[0].env, "LAPSE_SERVER=http://"+pods[0].listen), binary, hook[1:]...); !strings.Contains(out, "lapse-0 hands over") {
		t.Error(out)
	}
	pods[0].stop()
	if out := client(pods[1], "get", "kept"); !strings.Contains(out, "kept") {
		t.Error(out)
	}
	if out := client(pods[1], "nodes", "--json"); !strings.Contains(out, `"state":"released"`) {
		t.Errorf("lapse-0 was not drained: %s", out)
	}
}

// The compose file sets what the server knows, and mounts what it names.
func TestCompose(t *testing.T) {
	text, err := os.ReadFile("../../deploy/docker/compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Build       struct{ Context, Dockerfile string }
			Environment map[string]string
			Secrets     []string
			Ports       []string
			Image       string
			MemLimit    string `json:"mem_limit"`
		}
		Secrets map[string]struct{ File string }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	lapse := file.Services["lapse"]
	if _, err := os.Stat(filepath.Join("../../deploy/docker", lapse.Build.Context, lapse.Build.Dockerfile)); err != nil {
		t.Error(err)
	}
	if _, ok := file.Services["redis"]; !ok || !slices.Contains(lapse.Secrets, "tokens.yaml") || file.Secrets["tokens.yaml"].File != "./tokens.yaml" {
		t.Errorf("%+v", file)
	}
	if !slices.Equal(lapse.Ports, []string{"127.0.0.1:7480:7480"}) {
		t.Errorf("it can be reached from other machines: %v", lapse.Ports)
	}
	for name, s := range file.Services {
		if _, tag, _ := strings.Cut(s.Image, ":"); s.MemLimit == "" || tag == "" || tag == "latest" {
			t.Errorf("%s has image %q and memory limit %q", name, s.Image, s.MemLimit)
		}
	}
	binary, dir := unpackBinary(t), t.TempDir()
	tokens, _ := makeToken(t, binary, dir)
	cmd := exec.Command(binary, "serve", "--print-config")
	cmd.Dir = dir
	env := environ(readRecipe(t).config)
	maps.Copy(env, lapse.Environment)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+strings.Replace(value, "/run/secrets/tokens.yaml", tokens, 1))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name := range env {
		if !bytes.Contains(out, []byte(name)) {
			t.Errorf("%s is not in effect:\n%s", name, out)
		}
	}
}
