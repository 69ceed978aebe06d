package cluster_test

import (
	"reflect"
	"strings"
)

// A wireField is a field by its name on the wire.
type wireField struct {
	name  string
	value reflect.Value
}

// fieldsOf are those of an object, with those of what it embeds.
func fieldsOf(v reflect.Value) (all []wireField) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && f.Tag.Get("json") == "" {
			all = append(all, fieldsOf(v.Field(i))...)
		} else {
			all = append(all, wireField{wireName(f), v.Field(i)})
		}
	}
	return all
}

func wireName(f reflect.StructField) string {
	if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
		return name
	}
	return f.Name
}

func fieldNamed(v reflect.Value, name string) reflect.Value {
	for _, f := range fieldsOf(v) {
		if f.name == name {
			return f.value
		}
	}
	panic("no field " + name)
}
