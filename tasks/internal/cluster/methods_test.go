package cluster_test

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// The golden queries and replies, of version 1 of the wire (package relay): a file for
// each method, in which every field has a value, and faults.json. A new method gets a line in
// conversations, and what is new is written by -update, which changes nothing that stands
// there already: nodes of two versions call one another while they are replaced one by one,
// so fields and codes are only ever added. What has to become different gets another method.
var update = flag.Bool("update", false, "add what is new to the golden calls and answers")

const goldenDir = "testdata/questions/v1"

// conversations are all methods, with their queries and replies.
var conversations = []conversation{
	converse(cluster.GetMethod),
	converse(cluster.CancelMethod),
	converse(cluster.FireMethod),
	converse(cluster.HoldMethod),
	converse(cluster.ResumeMethod),
	converse(cluster.MoveMethod),
	converse(cluster.ScheduleMethod),
	converse(cluster.ReplaceMethod),
	converse(cluster.BatchMethod),
	converse(cluster.ImportMethod),
	converse(cluster.ExportMethod),
	converse(cluster.SettleMethod),
	converse(cluster.HasMethod),
	converse(cluster.FinishedMethod),
	converse(cluster.ReleaseMethod),
	converse(cluster.OfferShardMethod),
	converse(cluster.ReadAheadMethod),
	converse(cluster.SettingsMethod),
	converse(cluster.DrainMethod),
	converse(cluster.ReserveMethod),
	converse(cluster.DemandsMethod),
	converse(cluster.OfferMethod),
	converse(cluster.BacklogMethod),
	converse(cluster.ReadyMethod),
	converse(cluster.OffloadMethod),
	converse(cluster.OutcomesMethod),
	converse(cluster.ListMethod),
	converse(cluster.UsedMethod),
	converse(cluster.PurgeMethod),
	converse(cluster.RedriveMethod),
	converse(cluster.MendMethod),
	converse(cluster.ActMethod),
	converse(cluster.SelectMethod),
	converse(cluster.StatsMethod),
	converse(cluster.TopicsMethod),
	converse(cluster.RanksMethod),
	converse(cluster.ForecastMethod),
	converse(cluster.WavesMethod),
	converse(cluster.PastMethod),
	converse(cluster.EventsMethod),
	converse(cluster.CoalesceMethod),
	converse(cluster.SurveyMethod),
	converse(cluster.SearchMethod),
	converse(cluster.MessageMethod),
}

// A conversation is one method's query and reply, both full of values.
type conversation struct {
	method string
	query  any
	reply  any
	fault  error // why there is none
	// call calls node b, and returns what its reply was taken for.
	call func(s *cluster.Cluster) (any, error)
	// hear has a query answered by the reply, and returns what it was taken for.
	hear func(body []byte) (asked any, reply []byte)
}

func converse[Q, A any](v cluster.Method[Q, A]) conversation {
	var q Q
	var a A
	var err error
	if reflect.TypeFor[Q]().Kind() != reflect.Struct || reflect.TypeFor[A]().Kind() != reflect.Struct {
		err = errors.New("what is no object can have no new fields")
	}
	err = errors.Join(err, fillValue(reflect.ValueOf(&q).Elem(), v.Name+" question"), fillValue(reflect.ValueOf(&a).Elem(), v.Name+" answer"))
	return conversation{
		method: v.Name, query: q, reply: a, fault: err,
		call: func(s *cluster.Cluster) (any, error) { return cluster.Call(context.Background(), s, "b", v, q) },
		hear: func(body []byte) (any, []byte) {
			var heard any
			_, answer := cluster.Handle(v, func(_ *cluster.Cluster, _ context.Context, _ string, q Q) (A, error) {
				heard = q
				return a, nil
			})
			reply := answer(nil, context.Background(), "a", body)
			return heard, reply
		},
	}
}

// fillValue gives every field a value that follows from its path. It refuses what must not
// travel: what is encoded by rules of its own, or is left out, and names of fields that
// differ only in case, as those are taken for one another.
func fillValue(v reflect.Value, path string) error {
	h := fnv.New32a()
	_, _ = h.Write([]byte(path))
	n := int64(h.Sum32()%200) + 1
	name := strings.ToLower(path[strings.LastIndexAny(path, ". ")+1:])
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2030, 1, 1, 0, 0, int(n), 125_000_000, time.UTC)))
		return nil
	case reflect.TypeFor[time.Duration]():
		v.SetInt(n * int64(time.Second))
		return nil
	case reflect.TypeFor[[]byte]():
		v.SetBytes([]byte(name))
		return nil
	case reflect.TypeFor[json.RawMessage]():
		v.SetBytes(fmt.Appendf(nil, `{"%s":"<%d>"}`, name, n))
		return nil
	case reflect.TypeFor[Buckets](): // tested by TestBucketsTravel
		v.Index(int(n) % v.Len()).SetInt(n)
		return nil
	}
	for _, own := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if reflect.PointerTo(v.Type()).Implements(own) {
			return errors.New(path + ": is encoded by rules of its own")
		}
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(name)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(n)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return fillValue(v.Elem(), path)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		return fillValue(v.Index(0), path)
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		v.Set(reflect.MakeMap(v.Type()))
		err := fillValue(value, path+" value")
		v.SetMapIndex(reflect.ValueOf("key"), value)
		return err
	case reflect.Struct:
		var err error
		for i := range v.NumField() {
			switch f := v.Type().Field(i); {
			case f.Anonymous && f.Tag == "":
				err = errors.Join(err, fillValue(v.Field(i), path))
			case !f.IsExported(), f.Tag.Get("json") == "-":
				err = errors.Join(err, errors.New(path+"."+f.Name+" does not travel"))
			default:
				err = errors.Join(err, fillValue(v.Field(i), path+"."+wireName(f)))
			}
		}
		names := fieldsOf(v)
		for i, a := range names {
			for _, b := range names[:i] {
				if strings.EqualFold(a.name, b.name) {
					err = errors.Join(err, errors.New(path+": "+a.name+" and "+b.name+" are the same name"))
				}
			}
		}
		return err
	default:
		return errors.New(path + ": a " + v.Type().String() + " must not travel")
	}
	return nil
}

// A talk is two nodes that ask one another. b answers as a test says.
type talk struct {
	caller *cluster.Cluster
	answer func(q relay.Call) []byte
}

func talking(t *testing.T, test func(t *testing.T, k *talk)) {
	synctest.Test(t, func(t *testing.T) {
		fleet, k := memfleet.New(), &talk{}
		for _, name := range []string{"b", "a"} {
			member := fleet.Join(name, 1)
			if _, err := member.Adopt(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer member.Crash()
			r, err := relay.New(relay.Config{
				Bus: member, Node: name, Incarnation: "1",
				Answer: func(_ context.Context, q relay.Call) []byte { return k.answer(q) },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			k.caller = &cluster.Cluster{Fleet: &cluster.Fleet{Relay: r}}
		}
		test(t, k)
	})
}

var travelling = cmp.Exporter(func(reflect.Type) bool { return true })

// What nodes ask one another, and what they answer, is the same for every version that
// knows the method: encoded byte for byte, and decoded value for value.
func TestWireFormatUnchanged(t *testing.T) {
	var files []string
	talking(t, func(t *testing.T, k *talk) {
		for _, c := range conversations {
			rig.Want(t, c.method, c.fault, nil)
			var sent goldenCall
			k.answer = func(q relay.Call) []byte {
				_, reply := c.hear(q.Body)
				sent = goldenCall{bytes.Clone(q.Body), reply}
				return reply
			}
			_, err := c.call(k.caller)
			rig.Want(t, c.method, err, nil)
			files = append(files, c.method+".json")
			golden := keptAs(t, c.method+".json", sent)
			if heard, _ := c.hear(golden.Question); !cmp.Equal(c.query, heard, travelling) {
				t.Errorf("the call %s is taken for something else:%s", c.method, cmp.Diff(c.query, heard, travelling))
			}
			k.answer = func(relay.Call) []byte { return golden.Answer }
			got, err := c.call(k.caller)
			if rig.Want(t, c.method, err, nil); !cmp.Equal(c.reply, got, travelling) {
				t.Errorf("the answer to %s is taken for something else:%s", c.method, cmp.Diff(c.reply, got, travelling))
			}
		}
	})
	for method := range cluster.MethodHandlers() {
		if !slices.Contains(files, method+".json") {
			t.Errorf("the method %s has no golden call: it needs a line in conversations", method)
		}
	}
	stand, err := os.ReadDir(goldenDir)
	rig.Want(t, "ReadDir", err, nil)
	for _, f := range stand {
		if f.Name() != "faults.json" && !slices.Contains(files, f.Name()) {
			t.Errorf("no method answers %s any more, and a node of an older version may call it", f.Name())
		}
	}
}

// So are the codes of faults, and the numbers that stand for words.
func TestFaultsStay(t *testing.T) {
	type goldenFaults struct {
		Reply   cluster.Reply[struct{}]
		Codes   []string
		Numbers map[string]uint8
	}
	now := goldenFaults{Numbers: map[string]uint8{
		"pending": uint8(Pending), "ready": uint8(Ready), "delivering": uint8(Delivering), "dead": uint8(Dead),
		"ack": uint8(Ack), "release": uint8(Release), "extend": uint8(Extend), "bury": uint8(Bury), "return": uint8(Return),
	}}
	rig.Want(t, "fill", fillValue(reflect.ValueOf(&now.Reply.Fault).Elem(), "fault"), nil)
	for _, c := range cluster.ErrorCodes {
		now.Codes = append(now.Codes, c.Code)
	}
	slices.Sort(now.Codes)
	if golden := keptAs(t, "faults.json", now); !cmp.Equal(now, golden) {
		t.Error(cmp.Diff(now, golden))
	}
}

// A goldenCall is what stands in a method's file.
type goldenCall struct{ Question, Answer json.RawMessage }

// keptAs wants something to be encoded as it stands in a golden file, and returns what
// does.
func keptAs[T any](t *testing.T, name string, now T) T {
	t.Helper()
	path := filepath.Join(goldenDir, name)
	compact, err := task.Canonical(now)
	rig.Want(t, name, err, nil)
	var indented, plain bytes.Buffer
	rig.Want(t, name, json.Indent(&indented, append(compact, '\n'), "", "  "), nil)
	encoded := indented.Bytes()
	stands, err := os.ReadFile(path)
	if *update && (errors.Is(err, fs.ErrNotExist) || err == nil && keeps(t, name, stands, encoded)) {
		stands, err = encoded, os.WriteFile(path, encoded, 0o644)
	}
	rig.Want(t, "a golden file, which -update writes if it is new", err, nil)
	if !bytes.Equal(stands, encoded) {
		t.Errorf("%s is encoded in another way; -update adds what is new:%s", name, cmp.Diff(string(stands), string(encoded)))
	}
	var golden T
	rig.Want(t, name, json.Compact(&plain, stands), nil)
	rig.Want(t, name, json.Unmarshal(plain.Bytes(), &golden), nil)
	return golden
}

// keeps tells that whatever stands in a golden file is still there.
func keeps(t *testing.T, name string, stands, encoded []byte) bool {
	t.Helper()
	var before, after any
	rig.Want(t, name, errors.Join(json.Unmarshal(stands, &before), json.Unmarshal(encoded, &after)), nil)
	var lost func(path string, before, after any) string
	lost = func(path string, before, after any) string {
		switch b := before.(type) {
		case map[string]any:
			for key, value := range b {
				a, _ := after.(map[string]any)
				if what := lost(path+"."+key, value, a[key]); what != "" {
					return what
				}
			}
			return ""
		case []any:
			if a, _ := after.([]any); path == ".Codes" {
				for _, code := range b {
					if !slices.Contains(a, code) {
						return path + "." + code.(string)
					}
				}
				return ""
			} else if len(a) == len(b) {
				for i := range b {
					if what := lost(path, b[i], a[i]); what != "" {
						return what
					}
				}
				return ""
			}
		}
		if before == nil || cmp.Equal(before, after) {
			return ""
		}
		return path
	}
	what := lost("", before, after)
	if what != "" {
		t.Errorf("%s: %s is not what it was: a method that changes its meaning gets another name", name, what)
	}
	return what == ""
}

// A newer version asks and answers with fields that this one does not know, which are
// passed over, and an older one without some that this one knows, which are zero: that has
// to mean what was meant before there was the field.
func TestFieldsComeAndAreMissing(t *testing.T) {
	t.Parallel()
	talking(t, func(t *testing.T, k *talk) {
		for _, c := range conversations {
			rig.Want(t, c.method, c.fault, nil)
			for _, v := range variants(t, c.query) {
				if heard, _ := c.hear(v.body); !cmp.Equal(v.means, heard, travelling) {
					t.Errorf("the call %s %s:%s", c.method, v.what, cmp.Diff(v.means, heard, travelling))
				}
			}
			for _, v := range variants(t, c.reply) {
				k.answer = func(relay.Call) []byte {
					return slices.Concat([]byte(`{"tomorrow":{"answer":1},"answer":`), v.body, []byte("}"))
				}
				if got, err := c.call(k.caller); err != nil || !cmp.Equal(v.means, got, travelling) {
					t.Errorf("the answer to %s %s: %v%s", c.method, v.what, err, cmp.Diff(v.means, got, travelling))
				}
			}
		}
	})
}

// A variant is something as another version encodes it, and what this one has to take it
// for.
type variant struct {
	what  string
	body  []byte
	means any
}

// variants are those in which one object has a field more, or one less.
func variants(t *testing.T, full any) (all []variant) {
	body, err := json.Marshal(full)
	rig.Want(t, "Marshal", err, nil)
	// Each begins with copies of its own.
	vary := func(what string, path []any, change func(object map[string]any, v reflect.Value)) {
		typed, tree := reflect.New(reflect.TypeOf(full)), any(nil)
		rig.Want(t, "Unmarshal", errors.Join(json.Unmarshal(body, typed.Interface()), json.Unmarshal(body, &tree)), nil)
		v, at := typed.Elem(), tree
		for _, step := range path {
			v = reflect.Indirect(v)
			switch step := step.(type) {
			case int:
				v, at = v.Index(step), at.([]any)[step]
			case string:
				v, at = fieldNamed(v, step), at.(map[string]any)[step]
			}
		}
		change(at.(map[string]any), reflect.Indirect(v))
		changed, err := json.Marshal(tree)
		rig.Want(t, "Marshal", err, nil)
		all = append(all, variant{fmt.Sprint(what, " at ", path), changed, typed.Elem().Interface()})
	}
	var walk func(v reflect.Value, path []any)
	walk = func(v reflect.Value, path []any) {
		path = slices.Clip(path)
		switch v = reflect.Indirect(v); {
		case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
			for i := range v.Len() {
				walk(v.Index(i), append(path, i))
			}
		case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]():
			vary("with a new field", path, func(object map[string]any, _ reflect.Value) {
				object["Tomorrow"] = map[string]any{"ID": 7}
			})
			for _, f := range fieldsOf(v) {
				vary("without "+f.name, path, func(object map[string]any, v reflect.Value) {
					delete(object, f.name)
					fieldNamed(v, f.name).SetZero()
				})
				walk(f.value, append(path, f.name))
			}
		}
	}
	walk(reflect.ValueOf(full), nil)
	return all
}
