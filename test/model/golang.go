package model

import (
	"fmt"
	"reflect"
	"strings"
)

// Go writes a value as Go does, without the fields that are zero or have nothing in them, so
// that what failed can be put into a test.
func Go(v any) string {
	var b strings.Builder
	write(&b, reflect.ValueOf(v))
	return b.String()
}

// Program writes steps so that they can be put into a test.
func Program(steps []Step) string {
	var b strings.Builder
	b.WriteString("[]model.Step{\n")
	for _, s := range steps {
		fmt.Fprintf(&b, "\t{At: %d, Cut: %d, Commands: []session.Command{\n", s.At, s.Cut)
		for _, c := range s.Commands {
			fmt.Fprintf(&b, "\t\t%s,\n", Go(c))
		}
		b.WriteString("\t}},\n")
	}
	b.WriteString("}")
	return b.String()
}

func write(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Invalid:
		b.WriteString("nil")
	case reflect.Interface:
		write(b, v.Elem())
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("nil")
			return
		}
		b.WriteByte('&')
		write(b, v.Elem())
	case reflect.Struct:
		if v.CanInterface() && strings.HasPrefix(v.Type().String(), "unique.Handle") {
			if !v.IsZero() {
				write(b, v.MethodByName("Value").Call(nil)[0])
			}
			return
		}
		b.WriteString(v.Type().String() + "{")
		sep := ""
		for i := range v.NumField() {
			f, x := v.Type().Field(i), v.Field(i)
			if f.IsExported() && !x.IsZero() && (x.Kind() != reflect.Slice || x.Len() > 0) {
				b.WriteString(sep + f.Name + ": ")
				write(b, x)
				sep = ", "
			}
		}
		b.WriteByte('}')
	case reflect.Array: // bytes of a hash: the last ones are zero
		n := v.Len()
		for n > 0 && v.Index(n-1).IsZero() {
			n--
		}
		list(b, v, n)
	case reflect.Slice:
		list(b, v, v.Len())
	default:
		fmt.Fprintf(b, "%#v", v)
	}
}

func list(b *strings.Builder, v reflect.Value, n int) {
	b.WriteString(v.Type().String() + "{")
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		write(b, v.Index(i))
	}
	b.WriteByte('}')
}
