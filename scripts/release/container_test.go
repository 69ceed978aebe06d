//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// An image is what the last stage of the Dockerfile says.
type image struct {
	env                       map[string]string
	copies                    [][2]string // from, to
	user, dir, build          string
	entrypoint, args, healthy []string
}

// readImage reads the Dockerfile as far as ours goes; what it does not know is a failure.
func readImage(t *testing.T) image {
	t.Helper()
	text, err := os.ReadFile("../../deploy/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	m := image{env: map[string]string{}}
	words := func(text string) (list []string) {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return list
	}
	last := false
	for line := range strings.Lines(string(text)) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case verb == "" || strings.HasPrefix(verb, "#"):
		case verb == "FROM":
			last = rest == "scratch"
		case !last:
			m.build += line
		case verb == "COPY":
			fields := slices.DeleteFunc(strings.Fields(rest), func(f string) bool { return strings.HasPrefix(f, "--") })
			m.copies = append(m.copies, [2]string{fields[0], fields[1]})
		case verb == "USER":
			m.user = rest
		case verb == "WORKDIR":
			m.dir = rest
		case verb == "ENV":
			name, value, _ := strings.Cut(rest, "=")
			m.env[name] = value
		case verb == "ENTRYPOINT":
			m.entrypoint = words(rest)
		case verb == "CMD":
			m.args = words(rest)
		case verb == "HEALTHCHECK":
			_, command, _ := strings.Cut(rest, " CMD ")
			m.healthy = words(command)
		case verb == "VOLUME" || verb == "EXPOSE" || verb == "STOPSIGNAL":
		default:
			t.Fatalf("the test does not know %s", verb)
		}
	}
	if !strings.Contains(m.build, "-tags "+tags+" -trimpath -ldflags '"+ldflags+"'") || !strings.Contains(m.build, "CGO_ENABLED=0") {
		t.Errorf("the image is built otherwise than the release:\n%s", m.build)
	}
	return m
}

// What the Dockerfile puts together starts, as its user and with nothing else in its root. It wants
// tokens, since callers reach it from outside. The health check tells a server from none.
func TestImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root")
	}
	m := readImage(t)
	root := t.TempDir()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const uid = 65532
	if m.user != "65532:65532" {
		t.Fatalf("its user is %s", m.user)
	}
	binary := unpackBinary(t)
	for _, c := range m.copies {
		to := filepath.Join(root, c[1])
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch from := map[string]string{"/out/lapse": binary, "LICENSE": "../../LICENSE"}[c[0]]; {
		case from != "":
			var text []byte
			if text, err = os.ReadFile(from); err == nil {
				err = os.WriteFile(to, text, 0o755)
			}
		case c[0] == "/out/data":
			if err = os.Mkdir(to, 0o755); err == nil {
				err = os.Chown(to, uid, uid)
			}
		case c[0] == "/out/ca-certificates.crt":
			err = os.WriteFile(to, nil, 0o644)
		default:
			t.Fatalf("the test does not know where %s comes from", c[0])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	makeToken(t, binary, root)
	// Other programs may have the ports of the image.
	listen, health := freeAddr(t), freeAddr(t)
	ports := strings.NewReplacer(m.env["LAPSE_LISTEN"], listen, m.env["LAPSE_HEALTH_LISTEN"], health, "127.0.0.1:7490", health)
	inside := func(env []string, words ...string) *exec.Cmd {
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir = m.dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		for _, name := range slices.Sorted(maps.Keys(m.env)) {
			env = append(env, name+"="+ports.Replace(m.env[name]))
		}
		cmd.Env = env
		return cmd
	}
	check := slices.Clone(m.healthy)
	for i := range check {
		check[i] = ports.Replace(check[i])
	}
	start := slices.Concat(m.entrypoint, m.args)

	refused := inside(nil, start...)
	for i, e := range refused.Env { // as in a container, where callers come from outside
		refused.Env[i] = strings.Replace(e, "127.0.0.1:", "0.0.0.0:", 1)
	}
	if out, err := refused.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("token-file")) {
		t.Errorf("without tokens: %v\n%s", err, out)
	}
	if out, err := inside(nil, check...).CombinedOutput(); err == nil {
		t.Errorf("without a server it is healthy: %s", out)
	}
	p := begin(t, inside([]string{"LAPSE_TOKEN_FILE=/tokens.yaml"}, start...))
	p.answers("http://" + health + "/readyz")
	if out, err := inside(nil, check...).CombinedOutput(); err != nil {
		t.Errorf("with a server: %v\n%s", err, out)
	}
	p.stop()

	// What docs/install.md starts to try it.
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(page), " lapse dev ")
	line, _, _ = strings.Cut(line, "\n")
	if !found {
		t.Fatal("the page does not start lapse dev in a container")
	}
	trial := slices.Concat(m.entrypoint, []string{"dev"}, strings.Fields(strings.Replace(line, "0.0.0.0:7479", freeAddr(t), 1)))
	p = begin(t, inside(nil, trial...))
	p.answers("http://" + listen + "/readyz")
	if out, err := inside(nil, check...).CombinedOutput(); err != nil {
		t.Errorf("with lapse dev: %v\n%s", err, out)
	}
	p.stop()
}

// manifests returns the documents of the files that the kustomization lists.
func manifests(t *testing.T) (docs [][]byte) {
	t.Helper()
	const dir = "../../deploy/kubernetes"
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	var list struct{ Resources []string }
	if err := yaml.Unmarshal(read("kustomization.yaml"), &list); err != nil {
		t.Fatal(err)
	}
	for _, name := range list.Resources {
		docs = append(docs, bytes.Split(read(name), []byte("\n---\n"))...)
	}
	return docs
}

// readManifests decodes all documents, strictly: a field that Kubernetes does not have is a
// failure.
func readManifests(t *testing.T) (set *appsv1.StatefulSet, services []*corev1.Service) {
	t.Helper()
	for _, doc := range manifests(t) {
		var kind struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatal(err)
		}
		var err error
		switch kind.APIVersion + " " + kind.Kind {
		case "apps/v1 StatefulSet":
			set = &appsv1.StatefulSet{}
			err = yaml.UnmarshalStrict(doc, set)
		case "v1 Service":
			s := &corev1.Service{}
			err = yaml.UnmarshalStrict(doc, s)
			services = append(services, s)
		case "policy/v1 PodDisruptionBudget":
			err = yaml.UnmarshalStrict(doc, &policyv1.PodDisruptionBudget{})
		default:
			t.Errorf("%s of %s", kind.Kind, kind.APIVersion)
		}
		if err != nil {
			t.Errorf("%s: %v", kind.Kind, err)
		}
	}
	if set == nil || len(set.Spec.Template.Spec.Containers) != 1 {
		t.Fatal("there is no StatefulSet of one container")
	}
	return set, services
}

// The names that the manifests refer to exist, and the service selects the pods.
func TestManifests(t *testing.T) {
	set, services := readManifests(t)
	pod := set.Spec.Template
	ports := map[string]bool{}
	for _, p := range pod.Spec.Containers[0].Ports {
		ports[p.Name] = true
	}
	headless := false
	for _, s := range services {
		headless = headless || s.Name == set.Spec.ServiceName && s.Spec.ClusterIP == "None"
		for k, v := range s.Spec.Selector {
			if pod.Labels[k] != v || set.Spec.Selector.MatchLabels[k] != v {
				t.Errorf("the service %s selects %s=%s", s.Name, k, v)
			}
		}
		for _, p := range s.Spec.Ports {
			if !ports[p.TargetPort.StrVal] {
				t.Errorf("the service %s leads to the port %s", s.Name, p.TargetPort.StrVal)
			}
		}
	}
	if !headless {
		t.Errorf("there is no headless service %s", set.Spec.ServiceName)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range set.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, v := range pod.Spec.Containers[0].VolumeMounts {
		if !volumes[v.Name] {
			t.Errorf("there is no volume %s", v.Name)
		}
	}
	if at, err := exec.LookPath("kubectl"); err == nil {
		if out := output(t, "../..", nil, at, "kustomize", "deploy/kubernetes"); !strings.Contains(out, "kind: StatefulSet") {
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
	set, _ := readManifests(t)
	c := &set.Spec.Template.Spec.Containers[0]
	binary, redis, dir := unpackBinary(t), startRedis(t), t.TempDir()
	tokens, token := makeToken(t, binary, dir)
	m := readImage(t)
	secret := map[string]string{"redis": redis, "token": token}
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
	if m.env["LAPSE_HEALTH_LISTEN"] != "0.0.0.0:7490" || c.LivenessProbe.HTTPGet.Port.StrVal != "health" {
		t.Error("the probes do not go to the port of --health-listen")
	}
	for _, p := range pods {
		p.answers("http://" + p.health + c.LivenessProbe.HTTPGet.Path)
		p.answers("http://" + p.health + c.ReadinessProbe.HTTPGet.Path)
	}
	client := func(p pod, args ...string) string {
		t.Helper()
		return output(t, dir, append(p.env, "LAPSE_SERVER=http://"+p.listen), binary, args...)
	}
	client(pods[0], "schedule", "x", "--id", "kept", "--delay", "1h")

	hook := slices.Clone(c.Lifecycle.PreStop.Exec.Command)
	if hook[0] != m.entrypoint[0] {
		t.Errorf("preStop runs %s, which the image does not have", hook[0])
	}
	if out := client(pods[0], hook[1:]...); !strings.Contains(out, "lapse-0 hands over") {
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
	binary, dir := unpackBinary(t), t.TempDir()
	tokens, _ := makeToken(t, binary, dir)
	cmd := exec.Command(binary, "serve", "--print-config")
	cmd.Dir = dir
	m := readImage(t)
	maps.Copy(m.env, lapse.Environment)
	for name, value := range m.env {
		cmd.Env = append(cmd.Env, name+"="+strings.Replace(value, "/run/secrets/tokens.yaml", tokens, 1))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name := range m.env {
		if !bytes.Contains(out, []byte(name)) {
			t.Errorf("%s is not in effect:\n%s", name, out)
		}
	}
}
