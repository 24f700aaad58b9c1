package server

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
)

// NamespaceHeader names the namespace of a request.
const NamespaceHeader = "Govnode-Namespace"

const defaultNamespace = "default"

type namespaceKey struct{}

// namespaceGate reads the namespace before the body is decoded.
func namespaceGate(ctx context.Context, _ connect.Spec, _ connect.Peer, header http.Header) (context.Context, error) {
	ns := header.Get(NamespaceHeader)
	switch {
	case ns == "":
		return ctx, nil
	case len(header.Values(NamespaceHeader)) > 1:
		return nil, fault.Invalid(NamespaceHeader, "is given more than once; send one")
	}
	if bad := namespaceProblem(ns); bad != "" {
		return nil, fault.Invalid(NamespaceHeader, "%s", bad)
	}
	return context.WithValue(ctx, namespaceKey{}, ns), nil
}

// namespaceProblem says what is wrong with the name of a namespace, or nothing.
func namespaceProblem(ns string) string {
	if n := int64(len(ns)); n < caps.Namespace.Min || n > caps.Namespace.Max {
		return fmt.Sprintf("has %d bytes; it must have %d to %d", n, caps.Namespace.Min, caps.Namespace.Max)
	}
	for i := 0; i < len(ns); i++ {
		if c := ns[i]; !isIDByte(c) || c == ':' || c == '@' || c == '/' {
			return fmt.Sprintf("byte %d is not allowed; use only letters, digits and . _ -", i)
		}
	}
	return ""
}

// namespace returns the namespace of a request.
func namespace(ctx context.Context) string {
	if ns, ok := ctx.Value(namespaceKey{}).(string); ok {
		return ns
	}
	return defaultNamespace
}
