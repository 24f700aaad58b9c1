package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Every operation of a message has its kind: it is taken out of its own field, has
// the procedure of that request, and its answer goes where that of the procedure's
// belongs.
func TestEveryOperationHasItsKind(t *testing.T) {
	fields := (&v1.Operation{}).ProtoReflect().Descriptor().Oneofs().ByName("op").Fields()
	require.Len(t, kinds, fields.Len()+1, "and one for what is none")
	seen := map[int]bool{}
	for i := range fields.Len() {
		fd := fields.Get(i)
		in := &v1.Operation{}
		in.ProtoReflect().Set(fd, in.ProtoReflect().NewField(fd))
		op := (&Server{}).operationIn("default", in)
		k := op.state().kind
		require.Equal(t, fd.JSONName(), k.field)
		require.Same(t, k, kinds[k.number])
		require.False(t, seen[k.number])
		seen[k.number] = true

		name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(k.procedure, "/"), "/", "."))
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		require.NoError(t, err)
		method := d.(protoreflect.MethodDescriptor)
		require.Equal(t, method.Input().FullName(), fd.Message().FullName())
		r := &v1.OperationResult{}
		k.into(r, op)
		set := r.ProtoReflect().WhichOneof(r.ProtoReflect().Descriptor().Oneofs().ByName("result"))
		require.Equal(t, fd.Name(), set.Name())
		require.Equal(t, method.Output().FullName(), set.Message().FullName())
	}
	for _, none := range []*v1.Operation{nil, {}, {Op: &v1.Operation_Begin{}}} {
		require.IsType(t, &missing{}, (&Server{}).operationIn("default", none))
	}
}
