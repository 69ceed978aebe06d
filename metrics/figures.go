package metrics

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/tasks"
)

// A figure is a field that a metric shows. The tags of the field describe it, see tasks.Figures.
type figure struct {
	desc  *prometheus.Desc
	name  string // of the metric, which tells what its values are
	label []string
	index []int
}

var (
	ofNode  = figures(reflect.TypeFor[tasks.Stats]())
	ofTopic = figures(reflect.TypeFor[tasks.Counts](), labelTopic)
)

// figures finds the figures of a struct and of the structs in it. The counts of topics in the
// figures of a node are left out: Prometheus adds them up.
func figures(of reflect.Type, labels ...string) (all []figure) {
	known := make(map[string]*prometheus.Desc)
	var enter func(t reflect.Type, index []int)
	enter = func(t reflect.Type, index []int) {
		for f := range t.Fields() {
			at := slices.Concat(index, f.Index)
			if _, is := f.Tag.Lookup("attempt"); is {
				outcome, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				all = append(all, figure{attempts, "attempts_total", []string{outcome}, at})
			}
			tag := f.Tag.Get("metric")
			if tag == "" {
				if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[tasks.Counts]() {
					enter(f.Type, at)
				}
				continue
			}
			metric, pair, _ := strings.Cut(tag, ",")
			var key, label []string
			if of, value, is := strings.Cut(pair, "="); is {
				key, label = []string{of}, []string{value}
			}
			if known[metric] == nil {
				known[metric] = name(metric, f.Tag.Get("help"), slices.Concat(labels, key)...)
			}
			all = append(all, figure{known[metric], metric, label, at})
		}
	}
	enter(of, nil)
	return all
}

// show sends the figures of a struct.
func show(ch chan<- prometheus.Metric, all []figure, of reflect.Value, now time.Time, labels ...string) {
	for i := range all {
		f := &all[i]
		kind := prometheus.GaugeValue
		if strings.HasSuffix(f.name, "_total") {
			kind = prometheus.CounterValue
		}
		v := f.value(of.FieldByIndex(f.index), now)
		ch <- prometheus.MustNewConstMetric(f.desc, kind, v, slices.Concat(labels, f.label)...)
	}
}

func (f *figure) value(v reflect.Value, now time.Time) float64 {
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return time.Duration(v.Int()).Seconds()
	case v.CanInt():
		return float64(v.Int())
	case v.Kind() == reflect.Bool:
		return truth(v.Bool())
	}
	at := v.Interface().(time.Time)
	if strings.HasSuffix(f.name, "_age_seconds") {
		return age(at, now)
	}
	return unix(at)
}
