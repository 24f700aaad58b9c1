package audit

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// The text of what is said has each field under its name, and no others.
func TestSaidTextHasEachField(t *testing.T) {
	var s Said
	require.JSONEq(t, `{"do":"","namespace":""}`, string(s.Text()))
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		one := Said{Do: "D", Namespace: "n"}
		for _, f := range []reflect.Value{v.Field(i), reflect.ValueOf(&one).Elem().Field(i)} {
			switch f.Kind() {
			case reflect.String:
				f.SetString("a \"quoted\"\n\x1b[31m <é> " + v.Type().Field(i).Name)
			case reflect.Bool:
				f.SetBool(true)
			case reflect.Uint16:
				f.SetUint(65535)
			default:
				t.Fatalf("%s has a kind that the test does not know", v.Type().Field(i).Name)
			}
		}
		same(t, one)
	}
	same(t, s)
}

func same(t *testing.T, s Said) {
	t.Helper()
	want, err := json.Marshal(&s)
	require.NoError(t, err)
	require.JSONEq(t, string(want), string(s.Text()))
	var back Said
	require.NoError(t, json.Unmarshal(s.Text(), &back))
	require.Equal(t, s, back)
}
