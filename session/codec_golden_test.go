package session

import (
	"bytes"
	"encoding/hex"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/require"

	"example.com/govnode/limiter"
	"example.com/govnode/session/approval"
	"example.com/govnode/session/budget"
	"example.com/govnode/session/ids"
)

// What an older build wrote has to be read for ever. The files hold an entry
// with a command of each kind and a snapshot with a record of each kind. If one
// of these tests fails, a field or a kind was renumbered or lost: add a new
// number instead. Before the first release alone, GOVNODE_GOLDEN=write writes
// the files anew.
func golden(t *testing.T, name string, b []byte) []byte {
	t.Helper()
	path := "testdata/" + name
	if os.Getenv("GOVNODE_GOLDEN") == "write" {
		var lines strings.Builder
		for text := hex.EncodeToString(b); text != ""; {
			n := min(len(text), 100)
			lines.WriteString(text[:n] + "\n")
			text = text[n:]
		}
		require.NoError(t, os.WriteFile(path, []byte(lines.String()), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	old, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	require.NoError(t, err)
	return old
}

func TestEntriesOfVersion2(t *testing.T) {
	var cmds []Command
	valid := validCommands()
	for _, c := range allCommands() {
		name := reflect.TypeOf(c).Elem().Name()
		require.NotNil(t, valid[name], "validCommands has no example of %s", name)
		cmds = append(cmds, valid[name])
	}
	old := golden(t, "entry.v2.hex", EncodeEntry(time.Minute, cmds))
	at, got, err := DecodeEntry(old)
	require.NoError(t, err)
	require.Equal(t, time.Minute, at)
	require.Equal(t, cmds, got)
	require.Equal(t, old, EncodeEntry(at, got))
}

// oneOfEach returns a record of each kind in which no field is empty.
func oneOfEach() map[Key]Record {
	pin := &Pin{Digest{1}, Limits{
		MaxTokens: 1, MaxToolCalls: 2, MaxAttempts: 3, PerTool: []ToolLimit{{"t", 4}}, Timeout: 5,
		MaxConcurrent: 6, Backpressure: 7, Checkpoint: 8, Drift: 9,
		Kinds: []KindLimit{{Agent, 10}, {Sampling, 11}}, MaxFailures: 12, BreakerReset: 13,
	}}
	finished := ids.Forgotten(3)
	finished.Add(remembered("01JDABCDEFGHJKMNPQRSTVWXYZ", Fingerprint{5}, Ended, 6, 7))
	pool := &Pool{Threshold: 1, MaxQueue: 2, Put: true}
	pool.Leases = []limiter.Lease{{Holder: "ss c", Label: unique.Make("l"), Token: 3, Since: 4, Expires: 5, HoldUntil: 6, Weight: 7, Claim: true, Place: &limiter.Place{Until: 8, Seen: 7, Slots: 6, Priority: -5}}}
	pool.Queue = []limiter.Ticket{{Holder: "ss d", Label: unique.Make("m"), Weight: 5, Place: limiter.Place{Until: 7, Seen: 6, Slots: 4, Priority: -3}}}
	pool.Last, pool.Slots, pool.Per, pool.Kept = 8, 9, 10, 11
	pool.Index()
	return map[Key]Record{
		"sn/x": &Session{
			Agent: unique.Make("a"), Policy: unique.Make("p"), Version: 1, Phase: PhaseClosed, Pinned: true, Pin: pin, Content: Fingerprint{2},
			Opened: 3, IdleTTL: 4, Used: 5, Attempts: 7, Calls: 8, Executions: 9, Failures: 10, Consecutive: 11, Tokens: 12,
			Reserved: -13, Tools: []ToolCount{{unique.Make("t"), 14, 15}},
			Open: []Held{{
				Holder: "sx c", Content: Fingerprint{15}, Started: 16, Deadline: 17, Until: 18, Tokens: 19, Tool: unique.Make("t"),
				Pools: []Hold{{unique.Make("policy/p"), 20, 21}}, Rule: 22, Kind: Model,
				Gates: &HeldGates{Asked: &approval.Clock{Approved: true, AllowOnTimeout: true, Timeout: 12, Deadline: 13}, Request: Digest{14}, Rates: []Spent{{unique.Make("rate/x"), 25, 26, 27}}, Charges: []Charged{{unique.Make("b"), unique.Make("a"), 23, 24, 25}}},
			}},
			IDs: finished, More: &More{Parent: "y", Attributes: []Attr{{"k", "v"}}, Baseline: Digest{23}, Drift: 24, Token: Digest{25}},
			Gates: &Gates{Signal: Kill, Reason: "r", Since: 26, ModelCalls: 27, AgentCalls: 28, Handoffs: 29, FailedAt: 30},
			Chain: &Chain{31, 32, Digest{33}},
		},
		"pn/x": pool,
		"cn/x": &Client{
			Used: 1, IDs: finished, Chain: &Chain{2, 3, Digest{4}},
			Open: []Held{{
				Holder: "cx s", Content: Fingerprint{1}, Started: 2, Deadline: 3, Until: 4, Tokens: 5, Tool: unique.Make("t"),
				Pools: []Hold{{unique.Make("p"), 6, 7}}, Rule: 8, Kind: Handoff, Gates: &HeldGates{Owner: Principal{4}, Asked: &approval.Clock{Approved: true, AllowOnTimeout: true, Timeout: 12, Deadline: 13}, Request: Digest{14}, Rates: []Spent{{unique.Make("rate/x"), 9, 10, 11}}, Charges: []Charged{{unique.Make("b"), unique.Make(""), 1, 2, 3}}},
			}},
		},
		"yn/x": &Policy{Tree: []byte("tree"), Pin: pin, Names: []string{"p", "q"}, First: "q"},
		"mn/x": &Name{Digest{1}, 2},
		"in/x": &Pins{3},
		"kn/x": &Counter{Value{Number: true, N: -4}, 5},
		"nn/":  &Namespace{6, 7, 8, 9, &Chain{10, 11, Digest{12}}},
		"bn/x": &Baseline{Digest{9}, "text"},
		"hn/x": &Hash{"sha256:1"},
		"un/x": &Budget{Budget: budget.Budget{Amount: 1, Used: 2, Per: 3, Made: 4, Period: 5}, Parent: "a", Depth: 6, Children: 7, Serial: 8},

		ListKey("n", "x"):        &List{1, 64, 2},
		ListItemKey("n", "x", 0): &ListItem{"text", 3},
		"an/x": &Approval{
			Approval: approval.Approval{
				Clock: approval.Clock{Approved: true, AllowOnTimeout: true, Timeout: 1, Deadline: 2}, ForCall: true, Required: 3, Denials: 4,
				Votes: []approval.Vote{{Approver: "amy", Approve: true, Reason: "r", At: 5}}, End: approval.Used, Ended: 6,
			},
			Session: "s", Call: "c", Agent: "a", Tool: "t", Policy: Digest{7}, Rule: 8, Request: Digest{9}, Preview: "{}", Reason: "r", Asked: 10, Kind: Sampling, Server: "l", By: Principal{11},
		},
		"fn/x": &Standing{StandingOf{OfAgent, "a", "l", "t", true, Digest{1}}, "{}", 2, 3, 4, Principal{5}},
		"wn/": &Access{
			Epoch:  1,
			Tokens: []Token{{ID: "t", Hash: Digest{2}, Roles: 3, Agents: []string{"a"}, Policies: []string{"p"}, Made: 4, Expires: 5, By: "b", Label: "l", Environment: "e", Node: "n", Used: 17}},
			Denied: []DeniedSubject{{"s", "r", 6}},
			Quotas: Quotas{7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, Key: Digest{17},
		},
		"gn/": &Signals{Halts: []Halt{{Target{OfAgent, "a"}, Kill, 1, true, 2, "r"}}, Last: 3},
	}
}

func TestSnapshotsOfVersion2(t *testing.T) {
	s := New()
	s.SetClock(time.Minute, 3)
	for k, r := range oneOfEach() {
		s.Put(k, r)
	}
	require.Equal(t, len(allRecords()), s.Len())
	old := golden(t, "snapshot.v2.hex", snapshot(t, s))
	got, err := ReadSnapshot(bytes.NewReader(old))
	require.NoError(t, err)
	for k, r := range s.Snapshot().All() {
		require.Equal(t, r, got.Stored(k))
	}
	require.Equal(t, old, snapshot(t, got))
}
