package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/storage"
)

// BenchmarkExchange is what a call costs from its begin to its end over one stream,
// 64 of them to a message, with what it costs to ask for it.
func BenchmarkExchange(b *testing.B) {
	const each = 64
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store})
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	must(err)
	h := httptest.NewUnstartedServer(s.Handler())
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	defer func() {
		h.CloseClientConnections()
		_, _ = s.Close(), store.Close()
		h.Close()
	}()
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	c := clientsOf(&http.Client{Transport: &http.Transport{Protocols: p}}, h.URL)
	_, err = c.policies.PutPolicy(b.Context(), &v1.PutPolicyRequest{Yaml: "name: p\nmax_concurrent: 1000\nmax_tool_calls: 2000000000\nmax_attempts: 2000000000\n"})
	must(err)
	_, err = c.sessions.CreateSession(b.Context(), &v1.CreateSessionRequest{SessionId: "s", AgentId: "a", Policy: byName("p")})
	must(err)
	stream, err := c.calls.Exchange(b.Context())
	must(err)
	_, err = stream.Receive()
	must(err)
	exchange := func(frames []*v1.Operation) {
		must(stream.Send(&v1.ExchangeRequest{Frames: frames}))
		for got := 0; got < len(frames); {
			m, err := stream.Receive()
			must(err)
			for _, a := range m.Answers {
				if a.GetError() != nil || a.GetBegin() != nil && a.GetBegin().Outcome != v1.Outcome_OUTCOME_ADMITTED {
					b.Fatal(a)
				}
			}
			got += len(m.Answers)
		}
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%each > 0 { // an iteration is one call
			continue
		}
		begins, ends := make([]*v1.Operation, each), make([]*v1.Operation, each)
		for i := range each {
			call := fmt.Sprint("c", n+i)
			begins[i], ends[i] = beginFrame(uint64(i), "s", call), endFrame(uint64(i), "s", call)
		}
		exchange(begins)
		exchange(ends)
	}
}
