//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write deploy/kubernetes as the chart renders it")

// An install is one of scripts/release/helm, and what Helm makes of it.
type install struct {
	Release string         `json:"release"`
	Values  map[string]any `json:"values"`
}

type rendered struct {
	Error string
	Files map[string]string
	Lint  []string
}

// errNoHelm is returned where the modules of Helm cannot be had.
var errNoHelm = errors.New("the modules of Helm cannot be had")

// helm builds what renders and lints charts.
var helm = sync.OnceValues(func() (string, error) {
	const dir = "helm"
	if err := run(context.Background(), dir, nil, "go", "mod", "download"); err != nil {
		return "", fmt.Errorf("%w: %w", errNoHelm, err)
	}
	to := filepath.Join(filepath.Dir(madeRelease.dist), "helm")
	return to, run(context.Background(), dir, nil, "go", "build", "-tags", tags, "-o", to, ".")
})

func renderChart(t *testing.T, chart string, installs ...install) (results []rendered) {
	t.Helper()
	at, err := helm()
	if errors.Is(err, errNoHelm) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	asked, err := json.Marshal(installs)
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(t.Context(), ".", nil, at, chart)
	cmd.Stdin = bytes.NewReader(asked)
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &results)
	}
	if err != nil || len(results) != len(installs) {
		t.Fatalf("%v\n%s", failure(err, at, nil), out)
	}
	return results
}

// deployed is what a set of manifests has of each kind.
type deployed struct {
	set      *appsv1.StatefulSet
	services []*corev1.Service
	budget   *policyv1.PodDisruptionBudget
	policy   *networkingv1.NetworkPolicy
	monitor  *monitoringv1.ServiceMonitor
}

// decode decodes manifests, strictly: a field that Kubernetes does not have is a failure.
func decode(t *testing.T, files map[string]string) (d deployed) {
	t.Helper()
	for name, text := range files {
		for _, doc := range strings.Split(text, "\n---\n") {
			var kind struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var into any
			switch kind.APIVersion + " " + kind.Kind {
			case "apps/v1 StatefulSet":
				d.set = &appsv1.StatefulSet{}
				into = d.set
			case "v1 Service":
				s := &corev1.Service{}
				d.services = append(d.services, s)
				into = s
			case "policy/v1 PodDisruptionBudget":
				d.budget = &policyv1.PodDisruptionBudget{}
				into = d.budget
			case "networking.k8s.io/v1 NetworkPolicy":
				d.policy = &networkingv1.NetworkPolicy{}
				into = d.policy
			case "monitoring.coreos.com/v1 ServiceMonitor":
				d.monitor = &monitoringv1.ServiceMonitor{}
				into = d.monitor
			case " ": // a template that renders nothing
				continue
			default:
				t.Errorf("%s: %s of %s", name, kind.Kind, kind.APIVersion)
				continue
			}
			if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
				t.Errorf("%s: %s: %v", name, kind.Kind, err)
			}
		}
	}
	if d.set == nil || d.budget == nil || len(d.services) != 2 || len(d.set.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("want a StatefulSet of one container, a budget and two services: %+v", d)
	}
	return d
}

// check makes sure that what the manifests name exists, that no secret stands in them, and that a
// pod has a bound and the time to hand over.
func (d deployed) check(t *testing.T) {
	t.Helper()
	pod, c := d.set.Spec.Template, &d.set.Spec.Template.Spec.Containers[0]
	ports := map[string]int32{}
	for _, p := range c.Ports {
		for name, port := range ports {
			if port == p.ContainerPort {
				t.Errorf("%s and %s have port %d", name, p.Name, port)
			}
		}
		ports[p.Name] = p.ContainerPort
	}
	known := func(what, port string) {
		if ports[port] == 0 {
			t.Errorf("%s asks for port %q, which is not there: %v", what, port, ports)
		}
	}
	headless := false
	for _, s := range d.services {
		headless = headless || s.Name == d.set.Spec.ServiceName && s.Spec.ClusterIP == corev1.ClusterIPNone && s.Spec.PublishNotReadyAddresses
		for key, value := range s.Spec.Selector {
			if pod.Labels[key] != value {
				t.Errorf("%s selects %s=%s", s.Name, key, value)
			}
		}
		for _, p := range s.Spec.Ports {
			known(s.Name, p.TargetPort.StrVal)
		}
		if d.monitor != nil && s.Name == d.set.Spec.ServiceName {
			for key, value := range d.monitor.Spec.Selector.MatchLabels {
				if s.Labels[key] != value {
					t.Errorf("the monitor selects %s=%s", key, value)
				}
			}
			if p := d.monitor.Spec.Endpoints[0]; p.Authorization == nil || !slices.ContainsFunc(s.Spec.Ports, func(s corev1.ServicePort) bool { return s.Name == p.Port }) {
				t.Errorf("the monitor asks %+v", p)
			}
		}
	}
	if !headless {
		t.Errorf("there is no service %s without an address", d.set.Spec.ServiceName)
	}
	known("the liveness probe", c.LivenessProbe.HTTPGet.Port.StrVal)
	known("the readiness probe", c.ReadinessProbe.HTTPGet.Port.StrVal)
	if d.policy != nil {
		for _, rule := range d.policy.Spec.Ingress {
			for _, p := range rule.Ports {
				known("the network policy", p.Port.StrVal)
			}
		}
	}
	for _, labels := range []map[string]string{d.set.Spec.Selector.MatchLabels, d.budget.Spec.Selector.MatchLabels} {
		for key, value := range labels {
			if pod.Labels[key] != value {
				t.Errorf("selected is %s=%s", key, value)
			}
		}
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range d.set.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, v := range c.VolumeMounts {
		if !volumes[v.Name] {
			t.Errorf("there is no volume %s", v.Name)
		}
	}
	for _, e := range c.Env {
		if e.Name == "LAPSE_TOKEN" || e.Name == "LAPSE_REDIS" && e.Value != "" {
			t.Errorf("%s is in the environment", e.Name)
		}
	}
	if c.Resources.Limits.Memory().Value() < 1<<30 || *pod.Spec.TerminationGracePeriodSeconds < 60 || c.Lifecycle.PreStop.Exec == nil ||
		*pod.Spec.EnableServiceLinks || strings.HasSuffix(c.Image, ":latest") || !strings.ContainsAny(c.Image, ":@") {
		t.Errorf("the pod is %+v", pod.Spec)
	}
}

func theChart(t *testing.T) string {
	t.Helper()
	return theFile(t, madeRelease.dist, "lapse-*.tgz")
}

// Helm renders the chart of the release and finds no fault with it, plain and with all that can be
// set. What it renders is what Kubernetes knows, and fits together.
func TestChart(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("0a", 32)
	results := renderChart(t, theChart(t), install{Release: "lapse"}, install{Release: "shop", Values: map[string]any{
		"replicas": 5, "image": map[string]any{"repository": "registry.example:5000/lapse", "digest": digest}, "imagePullSecrets": []any{map[string]any{"name": "pull"}},
		"secret": "deadlines", "env": map[string]any{"LAPSE_ON_OUTAGE": "deliver", "LAPSE_MAX_PENDING": 2500000}, "redisPort": map[string]any{"enabled": true},
		"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
		"networkPolicy":  map[string]any{"egress": []any{map[string]any{"ports": []any{map[string]any{"port": 53, "protocol": "UDP"}}}}},
		"spool":          map[string]any{"size": "5Gi", "storageClassName": "fast"}, "podAnnotations": map[string]any{"team": "orders"},
		"nodeSelector": map[string]any{"disk": "ssd"}, "tolerations": []any{map[string]any{"key": "deadlines", "operator": "Exists"}},
		"affinity": map[string]any{"podAntiAffinity": map[string]any{}},
	}}, install{Release: "lapse", Values: map[string]any{"networkPolicy": map[string]any{"enabled": false}}})
	var all []deployed
	for i, r := range results {
		if r.Error != "" || len(r.Lint) > 0 {
			t.Fatalf("%d: %s\n%s", i, r.Error, strings.Join(r.Lint, "\n"))
		}
		notes := r.Files["lapse/templates/NOTES.txt"]
		if delete(r.Files, "lapse/templates/NOTES.txt"); !strings.Contains(notes, "kubectl rollout status statefulset/") {
			t.Errorf("the notes say %s", notes)
		}
		d := decode(t, r.Files)
		d.check(t)
		all = append(all, d)
	}
	version := strings.TrimPrefix(testVersion, "v")
	if got := all[0].set.Spec.Template.Spec.Containers[0].Image; got != "lapse:"+version {
		t.Errorf("plain, the image is %s", got)
	}
	if all[0].monitor != nil || all[0].policy == nil || all[2].policy != nil {
		t.Error("a monitor wants Prometheus; a policy is there unless it is switched off")
	}
	set := all[1].set
	if got := set.Spec.Template.Spec.Containers[0].Image; got != "registry.example:5000/lapse@"+digest || set.Name != "shop-lapse" || *set.Spec.Replicas != 5 {
		t.Errorf("the image is %s of %s, %d replicas", got, set.Name, *set.Spec.Replicas)
	}
	env := podEnv(t, &set.Spec.Template.Spec.Containers[0], "shop-lapse-0", map[string]string{"redis": "redis://there"}, strings.TrimSpace)
	for _, want := range []string{"LAPSE_ON_OUTAGE=deliver", "LAPSE_MAX_PENDING=2500000", "LAPSE_REDIS_LISTEN=0.0.0.0:7479", "LAPSE_ADVERTISE=http://shop-lapse-0.shop-lapse-nodes:7480"} {
		if !slices.Contains(env, want) {
			t.Errorf("there is no %s: %v", want, env)
		}
	}
	if got := all[1].monitor.Spec.Endpoints[0].Authorization.Credentials; got.Name != "deadlines" || got.Key != "metrics" {
		t.Errorf("the monitor reads %v", got)
	}
	if got := all[1].policy.Spec; len(got.PolicyTypes) != 2 || len(got.Egress) != 2 {
		t.Errorf("the policy is %+v", got)
	}
}

// The schema of the values names what is not possible.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	cases := []struct{ values, want string }{
		{`{"image": {"tag": "latest"}}`, "/image/tag"},
		{`{"image": {"digest": "sha256:0"}}`, "/image/digest"},
		{`{"replicas": 0}`, "/replicas"},
		{`{"env": {"LAPSE_TOKEN": "lapse_secret"}}`, "LAPSE_TOKEN"},
		{`{"env": {"LAPSE_REDIS": "redis://:secret@there"}}`, "LAPSE_REDIS"},
		{`{"env": {"PATH": "/bin"}}`, "PATH"},
		{`{"resources": {"limits": {"memory": null}}}`, "memory"},
		{`{"redisPort": {"enabled": true, "port": 7490}}`, "/redisPort/port"},
		{`{"redisPort": {"enabled": true, "port": 7480}}`, "/redisPort/port"},
		{`{"replica": 3}`, "replica"},
	}
	var installs []install
	for _, c := range cases {
		in := install{Release: "lapse"}
		if err := json.Unmarshal([]byte(c.values), &in.Values); err != nil {
			t.Fatal(err)
		}
		installs = append(installs, in)
	}
	for i, r := range renderChart(t, theChart(t), installs...) {
		if !strings.Contains(r.Error, cases[i].want) || !strings.Contains(r.Error, "schema") {
			t.Errorf("%s: %q", cases[i].values, r.Error)
		}
	}
}

// The manifests are those of the chart with its defaults, so that nothing is described twice.
func TestManifestsAreTheChart(t *testing.T) {
	t.Parallel()
	made := renderChart(t, "../../"+chartFolder, install{Release: "lapse"})[0]
	if made.Error != "" {
		t.Fatal(made.Error)
	}
	for name := range manifests(t) {
		text := made.Files[path.Join("lapse/templates", name)]
		text = "# deploy/helm/lapse renders this. To change it, change that, and run in scripts/release:\n" +
			"# go test -run TestManifestsAreTheChart -update\n" + strings.TrimSpace(text) + "\n"
		at := filepath.Join("../../deploy/kubernetes", name)
		if *update {
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(at); err != nil || string(got) != text {
			t.Errorf("%s is not what the chart renders (go test -run TestManifestsAreTheChart -update): %v", at, err)
		}
	}
}
