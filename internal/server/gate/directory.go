package gate

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A directory knows the methods of the API by their paths. It answers requests
// that are no call of one, which connect leaves without a word, with an error
// that says what to do: whoever writes such a request looks at nothing else.
type directory struct {
	mux      http.Handler
	reflects bool // the schema can be asked for
	methods  map[string]streaming
	services map[string][]string // their methods, in the order of the schema
	errors   *connect.ErrorWriter
}

// apiPrefix begins the path of every method.
var apiPrefix = "/" + string(v1.File_govnode_v1_common_proto.Package()) + "."

// streaming says which sides of a method send more than one message.
type streaming struct{ client, server bool }

// NewDirectory stands in front of the handlers of the API. Reflects says that its
// schema can be asked for.
func NewDirectory(mux http.Handler, reflects bool) http.Handler {
	d := &directory{mux: mux, reflects: reflects, methods: map[string]streaming{}, services: map[string][]string{}, errors: connect.NewErrorWriter()}
	protoregistry.GlobalFiles.RangeFilesByPackage(v1.File_govnode_v1_common_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				d.methods["/"+string(s.FullName())+"/"+string(m.Name())] = streaming{m.IsStreamingClient(), m.IsStreamingServer()}
				d.services[string(s.Name())] = append(d.services[string(s.Name())], string(m.Name()))
			}
		}
		return true
	})
	return d
}

// ServeHTTP implements http.Handler.
func (d *directory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m, known := d.methods[r.URL.Path]
	if known && !m.client && !m.server && connectUnary(r.Header.Get("Content-Type")) {
		u := &unreadable{ResponseWriter: w, directory: d, request: r}
		defer u.end()
		w = u
	}
	switch {
	case known && usual(m, r):
		d.mux.ServeHTTP(w, r)
	case known:
		d.mux.ServeHTTP(&explainer{ResponseWriter: w, directory: d, request: r, method: m}, r)
	case beside(r.URL.Path), d.reflects && strings.HasPrefix(r.URL.Path, "/grpc.reflection."):
		d.mux.ServeHTTP(w, r)
	default:
		d.refuse(w, r, http.StatusNotFound, fault.New(connect.CodeUnimplemented, fault.ReasonNotFound, d.nothingAt(r.URL.Path)))
	}
}

// usual reports whether a request is one that connect surely takes on: almost
// all are.
func usual(m streaming, r *http.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	switch r.Header.Get("Content-Type") {
	case "application/proto", "application/json":
		return !m.client && !m.server
	case "application/connect+proto", "application/connect+json":
		return (m.client || m.server) && r.ProtoMajor >= 2
	case "application/grpc", "application/grpc+proto":
		return r.ProtoMajor >= 2
	}
	return false
}

// beside reports whether a path is served beside the methods.
func beside(path string) bool {
	return path == "/healthz" || path == "/readyz" || path == "/metrics" || strings.HasPrefix(path, "/grpc.health.v1.Health/")
}

// nothingAt says what there is instead of a path that nobody answers.
func (d *directory) nothingAt(path string) string {
	shown := fmt.Sprintf("%q", engine.Redact(path[:min(len(path), 200)]))
	if name, ok := strings.CutPrefix(path, apiPrefix); ok {
		service, _, _ := strings.Cut(name, "/")
		if methods := d.services[service]; methods != nil {
			return shown + ": " + service + " has no such method; it has " + strings.Join(methods, ", ") + ", spelt like this"
		}
	}
	var names []string
	for name := range d.services {
		names = append(names, name)
	}
	slices.Sort(names)
	return shown + ": there is nothing here; the API is POST " + apiPrefix + "SERVICE/METHOD, and the services are " + strings.Join(names, ", ") +
		"; beside it there are GET /healthz, /readyz and /metrics"
}

// refuse writes an error as the caller's protocol has it, under a status of
// HTTP where that has one.
func (d *directory) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	// Best effort: the caller may be gone.
	_ = d.errors.Write(&under{w, status}, r, err)
}

// under writes an answer under a status of its own.
type under struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter. Streams have their errors in a body
// of status 200.
func (u *under) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		status = u.status
	}
	u.ResponseWriter.WriteHeader(status)
}

// An explainer is what connect answers a request on that may not be a call of
// the method: a status without a word gets its words.
type explainer struct {
	http.ResponseWriter
	directory *directory
	request   *http.Request
	method    streaming
}

func (e *explainer) WriteHeader(status int) {
	if err := e.why(status); err != nil && e.Header().Get("Content-Type") == "" {
		// In JSON, since the protocol of the caller is not spoken here.
		e.directory.refuse(e.ResponseWriter, &http.Request{}, status, err)
		return
	}
	e.ResponseWriter.WriteHeader(status)
}

// why says what is wrong with a request that connect does not take on; nil if
// the status says something else.
func (e *explainer) why(status int) error {
	switch status {
	case http.StatusMethodNotAllowed:
		return fault.Invalid("method", "is %q; send POST", e.request.Method)
	case http.StatusHTTPVersionNotSupported:
		return fault.Invalid("protocol", "is %s; this method is a stream in both directions and needs HTTP/2. BatchCalls does without", e.request.Proto)
	case http.StatusUnsupportedMediaType:
		is := "is missing"
		if t := e.request.Header.Get("Content-Type"); t != "" {
			is = fmt.Sprintf("is %q", engine.Redact(t[:min(len(t), 100)]))
		}
		if e.method.client || e.method.server {
			return fault.Invalid("Content-Type", "%s; this method is a stream: use a client of Connect, gRPC or gRPC-Web, whose types are %s", is, e.Header().Get("Accept-Post"))
		}
		return fault.Invalid("Content-Type", "%s; send application/json with a JSON object as the body", is)
	}
	return nil
}

// Flush implements http.Flusher, for streams under a type that is not usual.
func (e *explainer) Flush() {
	// Nobody could be told; writing fails as well.
	_ = http.NewResponseController(e.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController find what e stands for.
func (e *explainer) Unwrap() http.ResponseWriter { return e.ResponseWriter }
