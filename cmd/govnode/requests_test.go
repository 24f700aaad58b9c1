package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A listener notes the first request that comes, and answers none.
type listener struct {
	mu    sync.Mutex
	first string
	body  map[string]any
}

func (l *listener) note(next connect.UnaryFunc) connect.UnaryFunc {
	return func(_ context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.first == "" {
			parts := strings.Split(req.Spec().Procedure, ".")
			l.first = parts[len(parts)-1]
			b, err := protojson.Marshal(req.Any().(proto.Message))
			if err == nil {
				err = json.Unmarshal(b, &l.body)
			}
			if err != nil {
				l.first = err.Error()
			}
		}
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("that is all"))
	}
}

func (l *listener) start(t *testing.T) string {
	mux := http.NewServeMux()
	noted := connect.WithInterceptors(connect.UnaryInterceptorFunc(l.note))
	mux.Handle(govnodev1connect.NewApprovalServiceHandler(govnodev1connect.UnimplementedApprovalServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewLimitServiceHandler(govnodev1connect.UnimplementedLimitServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewAccessServiceHandler(govnodev1connect.UnimplementedAccessServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewSlotServiceHandler(govnodev1connect.UnimplementedSlotServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewSessionServiceHandler(govnodev1connect.UnimplementedSessionServiceHandler{}, noted))
	mux.Handle(govnodev1connect.NewCounterServiceHandler(govnodev1connect.UnimplementedCounterServiceHandler{}, noted))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// What is said on the command line reaches the node, and no flag is left out.
func TestRequests(t *testing.T) {
	raw, err := os.ReadFile("testdata/requests.txt")
	require.NoError(t, err)
	said := map[string]bool{}
	line := ""
	for _, text := range strings.Split(string(raw), "\n") {
		switch {
		case strings.HasPrefix(text, "  "):
			method, body, _ := strings.Cut(strings.TrimSpace(text), " ")
			checkRequest(t, line, method, body)
		case text != "" && !strings.HasPrefix(text, "#"):
			line = text
			words := strings.Fields(text)
			for _, w := range words {
				if strings.HasPrefix(w, "--") {
					said[words[0]+" "+words[1]+" "+w] = true
				}
			}
			said[words[0]+" "+words[1]] = true
		}
	}
	for _, group := range rootCommand().Commands() {
		switch group.Name() {
		case "approval", "token", "quota", "budget", "rate", "pool", "session", "signal", "state":
			for _, cmd := range group.Commands() {
				everyFlag(t, cmd, group.Name()+" "+cmd.Name(), said)
			}
		}
	}
}

func checkRequest(t *testing.T, line, method, body string) {
	t.Helper()
	l := &listener{}
	args := append(strings.Fields(line), "--addr", l.start(t))
	var out, problems bytes.Buffer
	require.NotZero(t, execute(args, &out, &problems), line)
	require.Equal(t, method, l.first, "%s: %s", line, problems.String())
	var want map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &want), line)
	if _, named := want["requestId"]; !named {
		delete(l.body, "requestId")
	}
	if _, named := want["client"]; !named {
		delete(l.body, "client")
	}
	for field, value := range want {
		if value == "ANY" { // it is drawn
			require.NotEmpty(t, l.body[field], line)
			l.body[field] = value
		}
	}
	require.Equal(t, want, l.body, line)
}

// everyFlag wants each flag of a command in the table, those apart that all have.
func everyFlag(t *testing.T, cmd *cobra.Command, name string, said map[string]bool) {
	if name == "approval watch" {
		return // it follows events
	}
	require.True(t, said[name], "testdata/requests.txt: %s is missing", name)
	common := map[string]bool{"tls-cert": true, "tls-key": true, "tls-ca": true, "addr": true, "namespace": true, "output": true, "timeout": true, "config": true, "help": true, "socket": true, "token": true, "token-file": true}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		used := said[name+" --"+f.Name]
		if group, _, _ := strings.Cut(name, " "); group == "signal" { // all three have the same
			used = used || said["signal stop --"+f.Name] || said["signal kill --"+f.Name] || said["signal continue --"+f.Name]
		}
		require.True(t, used || common[f.Name], "testdata/requests.txt: %s --%s is missing", name, f.Name)
	})
}
