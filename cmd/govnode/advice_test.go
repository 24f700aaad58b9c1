package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// Where nobody knows what became of a change, and the same command would be refused or do
// something else the second time, the error says where to look before that.
func TestAdviceWhereTheOutcomeIsNotKnown(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for line, look := range map[string]string{
		"state set k v --if-version 0":      "`govnode state get k` shows whether the value is there; asked again it is refused if it is",
		"state delete k --if-version 0a1b":  "`govnode state get k` shows whether the value is gone; asked again it is refused if it is",
		"pool delete gpu":                   "`govnode pool list` shows whether gpu is gone; ask again only if it is there, and is not another of that name",
		"rate delete r":                     "`govnode rate list` shows whether r is gone; ask again only if it is there, and is not another of that name",
		"budget delete b":                   "`govnode budget list` shows whether b is gone; ask again only if it is there, and is not another of that name",
		"policy delete p":                   "`govnode policy list` shows whether p is gone; ask again only if it is there, and is not another of that name",
		"approval unstand id":               "`govnode approval standing` shows whether id is gone; ask again only if it is there",
		"slot release gpu s --session run1": "`govnode slot list gpu` shows who holds what; ask again only if the same TOKEN holds s",
		"cluster transfer":                  "`govnode cluster status` shows who leads; asked again the leadership may move once more",
		"state set k v":                     "ask again",
	} {
		lost := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		var stdout, stderr bytes.Buffer
		code := execute(append(strings.Fields(line), "--addr", lost.Listener.Addr().String()), &stdout, &stderr)
		lost.Close()
		require.Equal(t, terminal.ExitNo, code, line)
		require.Contains(t, stderr.String(), "it is not known whether a change was made: "+look+"\n", line)
	}
}
