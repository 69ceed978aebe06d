package commandline

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/internal/choice"
)

// argumentSource is the source of arguments. Commas in them separate nothing.
const argumentSource = "argument"

// A Param is an argument or a flag of a command.
type Param struct {
	Name        string
	Help        string
	Placeholder string
	Group       string   // the heading under which a flag is listed
	Env         string   // the variable that sets a flag; "": none
	Default     string   // "": none
	Enum        []string // the values that it may have; nil: any
	Required    bool
	Negatable   bool
	Empty       bool // an empty text means something

	// Source is where the value comes from, "" for the default.
	Source string

	separator string
	given     []string
	field     reflect.Value
}

func newParam(field *reflect.StructField, value reflect.Value) *Param {
	tag := field.Tag
	p := &Param{Name: tag.Get("name"), Help: tag.Get("help"), Placeholder: tag.Get("placeholder"), Group: tag.Get("group"),
		Default: tag.Get("default"), separator: tag.Get("sep"), field: value}
	_, p.Required = tag.Lookup("required")
	_, p.Negatable = tag.Lookup("negatable")
	_, p.Empty = tag.Lookup("empty")
	if p.Name == "" {
		p.Name = hyphenated(field.Name)
	}
	if enum := tag.Get("enum"); enum != "" {
		p.Enum = strings.Split(enum, ",")
	}
	switch p.separator {
	case "":
		p.separator = ","
	case "none":
		p.separator = ""
	}
	return p
}

// Value returns the value of the field.
func (p *Param) Value() any { return p.field.Interface() }

// IsZero reports whether the field has the zero value of its type.
func (p *Param) IsZero() bool { return p.field.IsZero() }

// Type is the type of the value, or of what a pointer points to or a list holds.
func (p *Param) Type() reflect.Type {
	if t := p.field.Type(); t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		return t.Elem()
	}
	return p.field.Type()
}

// IsBool reports whether a flag stands without a value.
func (p *Param) IsBool() bool { return p.Type().Kind() == reflect.Bool }

// IsList reports whether it takes several values.
func (p *Param) IsList() bool { return p.field.Kind() == reflect.Slice }

// Give gives a value, or several to a list. It does nothing if another source has given one before.
// Fill reports a value that is wrong.
func (p *Param) Give(source string, texts ...string) {
	if p.Source == "" {
		p.Source, p.given = source, texts
	}
}

// Given is the last text that was given, "" if there is none.
func (p *Param) Given() string {
	if len(p.given) == 0 {
		return ""
	}
	return p.given[len(p.given)-1]
}

// fill sets the field to what was given, else to the default.
func (p *Param) fill() error {
	texts := p.given
	switch {
	case p.Source == "" && p.Default == "":
		return nil
	case p.Source == "":
		texts = []string{p.Default}
	}
	if p.lacksText(texts) {
		return errors.New("must not be empty")
	}
	switch {
	case p.IsList():
		if p.Source != argumentSource && p.separator != "" {
			if texts = p.split(texts); p.lacksText(texts) {
				return errors.New("must not have an empty element")
			}
		}
		list := reflect.MakeSlice(p.field.Type(), len(texts), len(texts))
		for i, text := range texts {
			if err := read(text, list.Index(i)); err != nil {
				return err
			}
		}
		p.field.Set(list)
		return nil
	case p.field.Kind() == reflect.Map:
		m := make(map[string]string, len(texts))
		for _, text := range texts {
			key, value, ok := strings.Cut(text, "=")
			if !ok {
				return fmt.Errorf(`must be NAME=VALUE, not %q`, text)
			}
			m[key] = value
		}
		p.field.Set(reflect.ValueOf(m))
		return nil
	}
	text := texts[len(texts)-1] // of several, the last one counts
	if p.Enum != nil && !slices.Contains(p.Enum, text) {
		return fmt.Errorf("must be %s, not %q", choice.Text(p.Enum), text)
	}
	if p.field.Kind() != reflect.Pointer {
		return read(text, p.field)
	}
	target := reflect.New(p.field.Type().Elem())
	p.field.Set(target)
	return read(text, target.Elem())
}

// lacksText reports whether the line gives an empty text that means nothing. Such a text is mostly
// a variable of a shell without a value. A filter that it took away would select everything.
func (p *Param) lacksText(texts []string) bool {
	return p.isOnLine() && !p.Empty && slices.Contains(texts, "")
}

// isOnLine reports whether the value stands on the command line.
func (p *Param) isOnLine() bool { return p.Source == argumentSource || p.Source == "flag --"+p.Name }

// split returns the elements that texts hold. The empty text holds none.
func (p *Param) split(texts []string) (elements []string) {
	for _, text := range texts {
		if text != "" {
			elements = append(elements, strings.Split(text, p.separator)...)
		}
	}
	return elements
}

// read sets target to the value of a text. Zero is an error for integers and durations: to package
// tasks it means the default, and an operator who types it means something else.
func read(text string, target reflect.Value) error {
	if u, ok := target.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch target.Kind() {
	case reflect.String:
		target.SetString(text)
	case reflect.Bool:
		switch strings.ToLower(text) {
		case "true", "1", "yes":
			target.SetBool(true)
		case "false", "0", "no":
			target.SetBool(false)
		default:
			return fmt.Errorf("must be true, 1, yes, false, 0 or no, not %q", text)
		}
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("must be a number, not %q", text)
		}
		target.SetFloat(f)
	case reflect.Int, reflect.Int64:
		n, err := readInt(text, target.Type())
		if err == nil && n == 0 {
			err = errors.New("must not be zero")
		}
		target.SetInt(n)
		return err
	default:
		panic("no value can be read into a " + target.Type().String())
	}
	return nil
}

// readInt reads an integer, or a duration, which may also be in days.
func readInt(text string, t reflect.Type) (int64, error) {
	if t == reflect.TypeFor[time.Duration]() {
		d, err := client.ParseDuration(text)
		return int64(d), err
	}
	n, err := strconv.ParseInt(text, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("must be an integer, not %q", text)
	}
	return n, nil
}
