//go:build attack

package vectors

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Canaries are texts that nobody else writes. Each has a number, which says in which
// field of which request it was. It is 32 bytes, as a hash is, and can be a name.
const canaryMark = "cnryzqxvk"

var canaries struct {
	mu sync.Mutex
	of []string // the field of each
}

// canary returns one for a field.
func canary(field string) string {
	canaries.mu.Lock()
	defer canaries.mu.Unlock()
	canaries.of = append(canaries.of, field)
	text := fmt.Sprintf("%s%06d", canaryMark, len(canaries.of)-1)
	return text + strings.Repeat("q", 32-len(text))
}

// fieldOf is the field of which a canary has the number.
func fieldOf(number int) string {
	canaries.mu.Lock()
	defer canaries.mu.Unlock()
	if number < 0 || number >= len(canaries.of) {
		return "a canary whose number is not whole"
	}
	return canaries.of[number]
}

// A probe is a request with a canary in one place.
type probe struct {
	method protoreflect.MethodDescriptor
	body   object
}

// probes are requests of every method with a canary in every field that it has, in
// several forms: one that may be taken, ones that are refused, and ones that cannot be
// read. bases are what requests have beside it, by the names of messages; a text that
// begins with $ is drawn anew for each request.
func probes(t *testing.T, bases map[string][]object) (all []probe) {
	known := map[string]bool{}
	require.NotNil(t, v1.File_govnode_v1_call_proto)
	protoregistry.GlobalFiles.RangeFilesByPackage("govnode.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				of := bases[string(m.Input().Name())]
				if of == nil {
					of = []object{{}}
				}
				for _, base := range of {
					w := &walk{bases: bases, emit: func(body object) { all = append(all, probe{m, body}) }, known: known}
					w.emit(drawn(base))
					w.message(m.Input(), base, func(o object) object { return o }, nil)
				}
			}
		}
		return true
	})
	for name := range bases {
		require.True(t, known[name], "%s is no message of a request", name)
	}
	return all
}

type walk struct {
	bases map[string][]object
	emit  func(object)
	known map[string]bool
}

// message puts canaries into the fields of a message, of which whole makes the request.
func (w *walk) message(m protoreflect.MessageDescriptor, base object, whole func(object) object, above []protoreflect.FullName) {
	for _, a := range above {
		if a == m.FullName() {
			return
		}
	}
	above = append(above[:len(above):len(above)], m.FullName())
	w.known[string(m.Name())] = true
	w.emit(whole(drawn(alone(base, nil, canary("unknown field"), 1))))
	kind, _ := base["$kind"].(string)
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		field := string(m.Name()) + "." + string(f.Name()) + kind
		say := func(values ...func(canary string) any) {
			for _, v := range values {
				w.emit(whole(drawn(alone(base, f, f.JSONName(), v(canary(field))))))
			}
		}
		switch {
		case f.IsMap():
			w.emit(whole(drawn(alone(base, f, f.JSONName(), object{canary(field + ": a key"): "v"}))))
			w.emit(whole(drawn(alone(base, f, f.JSONName(), object{canary(field + ": a key"): 1}))))
			say(func(c string) any { return object{"k": c} },
				func(c string) any { return object{"k": object{c: c}} }, func(c string) any { return c })
		case f.Kind() == protoreflect.StringKind:
			for _, form := range textForms(string(f.Name())) {
				say(func(c string) any { return listed(f, form(c)) })
			}
			say(func(c string) any { return object{c: c} }) // which is no text
		case f.Kind() == protoreflect.BytesKind:
			say(func(c string) any { return base64.StdEncoding.EncodeToString([]byte(c)) },
				func(c string) any { return base64.StdEncoding.EncodeToString([]byte(c + c)) },
				func(c string) any { return c + "!" }) // which is not base64
		case f.Message() == nil:
			say(func(c string) any { return listed(f, c) }) // which is no number
		case f.Message().FullName() == "google.protobuf.Struct":
			say(secrets, func(c string) any { return c }, func(c string) any { return object{"a": object{"b": 1e300, c: c}} }, func(c string) any { return []any{c} })
		case f.Message().FullName() == "google.protobuf.Value":
			say(secrets, func(c string) any { return c }, func(c string) any { return []any{"x", c} }, func(c string) any { return "error: " + c },
				func(c string) any { return strings.Repeat(c, 10_000) })
		case f.Message().ParentFile().Package() == "google.protobuf":
			say(func(c string) any { return c }) // which is no time
		default:
			say(func(c string) any { return listed(f, c) }) // which is no message
			inner := object{}
			if of := w.bases[string(f.Message().Name())]; of != nil {
				inner = of[0]
			}
			w.message(f.Message(), inner, func(o object) object {
				return whole(drawn(alone(base, f, f.JSONName(), listed(f, o))))
			}, above)
		}
	}
}

// secrets is an object with a canary where secrets are, and where nobody looks for them.
func secrets(c string) any {
	return object{"password": c, "Authorization": "Bearer " + c, "aws": "AKIAIOSFODNN7EXAMPLE " + c, "cmd": "mysql -p" + c, c: object{"deep": []any{c, 1}}}
}

// textForms are the forms in which a text brings a canary.
func textForms(field string) []func(c string) any {
	forms := []func(c string) any{
		func(c string) any { return c },
		func(c string) any { return c + " \n\"}{\x1b[31m%s " + c },
		func(c string) any { return strings.Repeat(c, 20) },
		func(c string) any { return strings.Repeat(c, 10_000) },
	}
	switch {
	case strings.HasSuffix(field, "_json"):
		text := func(v any) string {
			b, err := json.Marshal(v)
			if err != nil {
				panic(err)
			}
			return string(b)
		}
		forms = append(forms, func(c string) any { return text(secrets(c)) }, func(c string) any { return text([]any{c}) },
			func(c string) any { return `{"` + c + `":1,"` + c + `":2}` }, func(c string) any { return `{"a":"` + c + `","b":` + c + `}` },
			func(c string) any { return `{"a":"` + c + `","b":1e999}` }, func(c string) any { return `{"a":"` + c + `\ud800"}` },
			func(c string) any { return `{"a":"` + c + `"` }, func(c string) any { return strings.Repeat("[", 500) + `"` + c + `"` })
	case field == "yaml" || field == "content":
		forms = append(forms, func(c string) any { return "max_tool_calls: 3 # " + c + "\n" }, func(c string) any { return c + ": 3\n" },
			func(c string) any { return "blocked_patterns: ['(" + c + "']\n" }, func(c string) any { return "max_tool_calls: " + c + "\n" })
	}
	return forms
}

// listed is a value, in a list where the field is one.
func listed(f protoreflect.FieldDescriptor, v any) any {
	if f.IsList() {
		return []any{v}
	}
	return v
}

// alone is an object with another field, and without those of which only one may be there.
func alone(base object, f protoreflect.FieldDescriptor, name string, v any) object {
	o := maps.Clone(base)
	if o == nil {
		o = object{}
	}
	if f != nil && f.ContainingOneof() != nil {
		of := f.ContainingOneof().Fields()
		for i := range of.Len() {
			delete(o, of.Get(i).JSONName())
		}
	}
	o[name] = v
	return o
}

var draws atomic.Uint64

// drawn is an object in which texts that are to be drawn have been.
func drawn(o object) object {
	out := object{}
	for k, v := range o {
		switch text, _ := v.(string); {
		case k == "$kind":
			continue
		case strings.HasPrefix(text, "$"):
			v = fmt.Sprintf("%s%06d", text[1:], draws.Add(1))
		}
		out[k] = v
	}
	return out
}
