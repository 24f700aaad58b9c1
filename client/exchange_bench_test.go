//go:build unix

package client_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// BenchmarkCall begins and ends calls over one stream, to a node in this process
// that costs next to nothing: the figures are those of the client and of HTTP/2,
// with the requests and answers encoded by hand and by the generated code.
// An iteration is one call, that is two operations. cpu-ns/op is what the whole
// process has used, whatever else the machine does.
func BenchmarkCall(b *testing.B) {
	node := httptest.NewUnstartedServer(newTemplate(b))
	node.Config.Protocols = new(http.Protocols)
	node.Config.Protocols.SetUnencryptedHTTP2(true)
	node.Start()
	defer node.Close()
	for _, callers := range []int{1, 64, 1024} {
		for name, wire := range wires {
			b.Run(fmt.Sprintf("callers=%d/%s", callers, name), func(b *testing.B) {
				cfg := client.Config{Addresses: []string{node.URL}}
				wire(&cfg)
				c, err := client.New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				call := client.Call{
					Tool: "web_search", Wait: client.NoWait, Pools: []client.Want{{Pool: "gpu"}},
					Arguments: map[string]any{"query": "weather in Lisbon", "limit": 5},
				}
				work := make(chan int)
				done := make(chan error)
				for range callers {
					session := c.Session("01ARZ3NDEKTSV4RRFFQ69G5FAV")
					go func() {
						var first error
						for n := range work {
							for range n {
								open, err := session.Begin(b.Context(), call)
								if err == nil {
									err = open.End(b.Context(), client.Succeeded)
								}
								if first == nil {
									first = err
								}
							}
						}
						done <- first
					}()
				}
				b.ReportAllocs()
				b.ResetTimer()
				before := cpuTime(b)
				for left := b.N; left > 0; left -= 16 {
					work <- min(left, 16)
				}
				close(work)
				for range callers {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime returns what the process has used, in user and in system.
func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// A template is a node that answers every operation of a kind alike, by bytes
// that were made before.
type template struct {
	begin, end []byte // results without their tags
	hello      []byte
}

func newTemplate(b *testing.B) *template {
	encode := func(m proto.Message) []byte {
		raw, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		return raw
	}
	counters := &govnodev1.Counters{Attempts: 1201, Calls: 1201, Executions: 1200, TokensUsed: 100}
	return &template{
		hello: encode(&govnodev1.ExchangeResponse{MaxInFlight: 1024}),
		begin: encode(&govnodev1.OperationResult{Result: &govnodev1.OperationResult_Begin{Begin: &govnodev1.BeginCallResponse{
			Outcome: govnodev1.Outcome_OUTCOME_ADMITTED, DecisionId: "01ARZ3NDEKTSV4RRFFQ69G5FAV",
			Decision: &govnodev1.Decision{
				Allowed: true, Action: "allow", Policy: "bench", MatchedRule: "allow-search", Reason: "the tool is allowed",
				PolicyDigest: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Backend: "rules",
				EvaluationTime: durationpb.New(2 * time.Microsecond),
			},
			Grants: []*govnodev1.Grant{
				{Pool: "policy/bench", Token: 81230, Ttl: durationpb.New(30 * time.Second)},
				{Pool: "gpu", Token: 9123, Ttl: durationpb.New(30 * time.Second)},
			},
			Pressure: &govnodev1.Pressure{Level: govnodev1.Level_LEVEL_NONE, InUse: 512, Limit: 4096},
			Counters: counters, Index: 1 << 22,
		}}}),
		end: encode(&govnodev1.OperationResult{Result: &govnodev1.OperationResult_End{End: &govnodev1.EndCallResponse{
			Outcome: govnodev1.Outcome_OUTCOME_ENDED, Counters: counters, Index: 1 << 22,
		}}}),
	}
}

func (n *template) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/govnode.v1.CallService/Exchange" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/connect+proto")
	flush := http.NewResponseController(w).Flush
	out := append(make([]byte, 5), n.hello...)
	var in []byte
	for {
		binary.BigEndian.PutUint32(out[1:], uint32(len(out)-5))
		if _, err := w.Write(out); err != nil || flush() != nil {
			return
		}
		var head [5]byte
		if _, err := io.ReadFull(r.Body, head[:]); err != nil {
			_, _ = w.Write(append([]byte{2, 0, 0, 0, 2}, "{}"...)) // the end of the stream
			return
		}
		in = append(in[:0], make([]byte, binary.BigEndian.Uint32(head[1:]))...)
		if _, err := io.ReadFull(r.Body, in); err != nil {
			return
		}
		out = n.answer(out[:5], in)
	}
}

// answer appends an answer to each frame of an ExchangeRequest.
func (n *template) answer(out, in []byte) []byte {
	for len(in) > 0 {
		_, _, k := protowire.ConsumeTag(in)
		frame, m := protowire.ConsumeBytes(in[k:])
		in = in[k+m:]
		var tag uint64
		result := n.end
		for len(frame) > 0 {
			field, kind, k := protowire.ConsumeTag(frame)
			switch field {
			case 1:
				tag, _ = protowire.ConsumeVarint(frame[k:])
			case 2:
				result = n.begin
			}
			frame = frame[k+protowire.ConsumeFieldValue(field, kind, frame[k:]):]
		}
		out = protowire.AppendTag(out, 2, protowire.BytesType)
		out = protowire.AppendVarint(out, uint64(1+protowire.SizeVarint(tag)+len(result)))
		out = protowire.AppendTag(out, 1, protowire.VarintType)
		out = protowire.AppendVarint(out, tag)
		out = append(out, result...)
	}
	return out
}
