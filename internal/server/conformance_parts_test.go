package server_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine/value"
)

func orNull(s string) value.Value {
	if s == "" {
		return value.Value{}
	}
	return value.OfString(s)
}

func listOfTexts(list []string) value.Value {
	items := make([]value.Value, len(list))
	for i, s := range list {
		items[i] = value.OfString(s)
	}
	return value.OfList(items...)
}

func structValue(t testing.TB, s *structpb.Struct) value.Value {
	t.Helper()
	if s == nil {
		return value.Value{}
	}
	return anyValue(t, s.AsMap())
}

func anyValue(t testing.TB, v any) value.Value {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	out, err := value.Parse(text)
	require.NoError(t, err)
	return out
}
