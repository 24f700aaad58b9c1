package input

import (
	"context"
	"fmt"
	"net/http"

	"example.com/govnode/internal/server/fault"
)

// The namespace of a request, which a header names.

// NamespaceHeader names the namespace of a request.
const NamespaceHeader = "Govnode-Namespace"

// DefaultNamespace is that of a request that names none.
const DefaultNamespace = "default"

// NamespaceKey is under which a context has the namespace, a string.
type NamespaceKey struct{}

// NamespaceGate reads the namespace before the body is decoded.
func NamespaceGate(ctx context.Context, header http.Header) (context.Context, error) {
	ns := header.Get(NamespaceHeader)
	switch {
	case ns == "":
		return ctx, nil
	case len(header.Values(NamespaceHeader)) > 1:
		return nil, fault.Invalid(NamespaceHeader, "is given more than once; send one")
	}
	if bad := NamespaceProblem(ns); bad != "" {
		return nil, fault.Invalid(NamespaceHeader, "%s", bad)
	}
	return context.WithValue(ctx, NamespaceKey{}, ns), nil
}

// NamespaceProblem says what is wrong with the name of a namespace, or nothing.
func NamespaceProblem(ns string) string {
	if n := int64(len(ns)); n < Caps.Namespace.Min || n > Caps.Namespace.Max {
		return fmt.Sprintf("has %d bytes; it must have %d to %d", n, Caps.Namespace.Min, Caps.Namespace.Max)
	}
	for i := 0; i < len(ns); i++ {
		if c := ns[i]; !isIDByte(c) || c == ':' || c == '@' || c == '/' {
			return fmt.Sprintf("byte %d is not allowed; use only letters, digits and . _ -", i)
		}
	}
	return ""
}

// Namespace returns the namespace of a request.
func Namespace(ctx context.Context) string {
	if ns, ok := ctx.Value(NamespaceKey{}).(string); ok {
		return ns
	}
	return DefaultNamespace
}
