package server_test

import (
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// everything is the whole state, record by record, without what a refused
// request may count elsewhere.
func (n *node) everything() map[session.Key]string {
	n.t.Helper()
	view, err := n.store.View(n.ctx(), "", storage.Latest)
	require.NoError(n.t, err)
	entries, err := view.Find("", "", 100_000, nil)
	require.NoError(n.t, err)
	all := make(map[session.Key]string, len(entries))
	for _, e := range entries {
		all[e.Key] = hex.EncodeToString(session.EncodeRecord(e.Record))
	}
	return all
}

// furnished is a node with a policy p, a pool gpu of 2, and a session s with
// an open call c, an ended call e, and a slot that client w holds.
func furnished(t *testing.T) *node {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	n.begin("s", "c")
	n.begin("s", "e")
	n.end("s", "e")
	n.putPool("gpu", 2)
	n.acquire("gpu", "slot")
	n.putRate("llm", 2, time.Hour)
	status, _ := n.post("CounterService/Set", `{"key":"text","value":"words","requestId":"set-text"}`)
	require.Equal(t, http.StatusOK, status)
	status, _ = n.post("CounterService/Set", `{"key":"big","value":"9223372036854.775807","requestId":"set-big"}`)
	require.Equal(t, http.StatusOK, status)
	return n
}

var (
	long    = strings.Repeat("x", 129)
	unknown = "sha256:" + strings.Repeat("1", 64)
	bomb    = "a: &a [x,x,x,x,x,x,x,x,x]\\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\\n"
)

// badInput is one request that has to be refused, what must stand in the error,
// and the code of the error.
var badInput = []struct {
	name, method, body string
	code, reason, text string
}{
	// Sessions.
	{"no agent", "SessionService/CreateSession", `{"policy":{"name":"p"}}`, "invalid_argument", "INVALID_FIELD", "agentId: is required"},
	{"blank in an id", "SessionService/CreateSession", `{"sessionId":"a b","agentId":"a","policy":{"name":"p"}}`, "invalid_argument", "INVALID_FIELD", "sessionId: byte 1"},
	{"id too long", "SessionService/CreateSession", `{"sessionId":"` + long + `","agentId":"a","policy":{"name":"p"}}`, "invalid_argument", "INVALID_FIELD", "sessionId: has 129 bytes"},
	{"no policy", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a"}`, "invalid_argument", "INVALID_FIELD", "policy: is required"},
	{"unknown policy", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a","policy":{"name":"nope"}}`, "not_found", "NOT_FOUND", `policy.name: there is no policy "nope"`},
	{"unknown digest", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a","policy":{"digest":"` + unknown + `"}}`, "not_found", "NOT_FOUND", "policy.digest"},
	{"no digest at all", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a","policy":{"digest":"sha256:xyz"}}`, "invalid_argument", "INVALID_FIELD", "policy.digest: "},
	{"the digest of nothing", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a","policy":{"digest":"sha256:` + strings.Repeat("0", 64) + `"}}`, "invalid_argument", "INVALID_FIELD", "policy.digest: "},
	{"session id reused", "SessionService/CreateSession", `{"sessionId":"s","agentId":"other","policy":{"name":"p"}}`, "invalid_argument", "ID_REUSED", `sessionId "s"`},
	{"negative idleTtl", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a","policy":{"name":"p"},"idleTtl":"-1s"}`, "invalid_argument", "INVALID_FIELD", "idleTtl: is -1s"},
	{"idleTtl that overflows", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a","policy":{"name":"p"},"idleTtl":"315576000000s"}`, "invalid_argument", "INVALID_FIELD", "idleTtl: is 315576000000s; it must be from"},
	{"its own parent", "SessionService/CreateSession", `{"sessionId":"x","agentId":"a","policy":{"name":"p"},"parentSessionId":"x"}`, "invalid_argument", "INVALID_FIELD", "parentSessionId: is the session itself"},
	{"get an unknown session", "SessionService/GetSession", `{"sessionId":"nope"}`, "not_found", "NOT_FOUND", `there is no session "nope"`},
	{"close an unknown session", "SessionService/CloseSession", `{"sessionId":"nope"}`, "not_found", "NOT_FOUND", `there is no session "nope"`},
	{"unknown consistency", "SessionService/GetSession", `{"sessionId":"s","consistency":9}`, "invalid_argument", "INVALID_FIELD", "consistency: is 9, which is none of its values; it must be one of CONSISTENCY_LINEARIZABLE, CONSISTENCY_STALE"},
	{"negative page", "SessionService/ListSessions", `{"pageSize":-1}`, "invalid_argument", "INVALID_FIELD", "pageSize: is -1"},

	// Calls.
	{"unknown session", "CallService/BeginCall", `{"sessionId":"nope","callId":"x","tool":"t"}`, "not_found", "NOT_FOUND", `there is no session "nope"`},
	{"no call id", "CallService/BeginCall", `{"sessionId":"s","tool":"t"}`, "invalid_argument", "INVALID_FIELD", "callId: is required"},
	{"no tool", "CallService/BeginCall", `{"sessionId":"s","callId":"x"}`, "invalid_argument", "INVALID_FIELD", "tool: is required"},
	{"a tool with a newline", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"a\nb"}`, "invalid_argument", "INVALID_FIELD", "tool: holds a control character"},
	{"a tool that reads backwards", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"a\u202egnp.exe"}`, "invalid_argument", "INVALID_FIELD", "tool: holds U+202E at byte 1"},
	{"a tool of two lines", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"a\u2028b"}`, "invalid_argument", "INVALID_FIELD", "tool: holds U+2028 at byte 1"},
	{"a tool with a letter that shows nothing", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"a\u200bb"}`, "invalid_argument", "INVALID_FIELD", "tool: holds U+200B at byte 1"},
	{"a tool in wide letters", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"\uff41b"}`, "invalid_argument", "INVALID_FIELD", `tool: is another form of "ab"`},
	{"a tool with a foreign letter", "PolicyService/Evaluate", `{"policy":{"name":"p"},"tool":"\u0430b"}`, "invalid_argument", "INVALID_FIELD", "tool: holds U+0430 beside Latin letters"},
	{"a label that reads backwards", "SlotService/AcquireSlot", `{"pool":"gpu","slotId":"x","label":"\u2067a"}`, "invalid_argument", "INVALID_FIELD", "label: holds U+2067 at byte 0"},
	{"metadata that reads backwards", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","metadata":{"\u202ea":"v"}}`, "invalid_argument", "INVALID_FIELD", `metadata["\u202ea"]: holds U+202E`},
	{"unknown kind", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","kind":77}`, "invalid_argument", "INVALID_FIELD", "kind: is 77, which is none of its values"},
	{"unknown order", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","order":77}`, "invalid_argument", "INVALID_FIELD", "order: is 77, which is none of its values"},
	{"unknown pool", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","pools":[{"pool":"nope"}]}`, "not_found", "NOT_FOUND", `pools: there is no pool "nope"`},
	{"a pool twice", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","pools":[{"pool":"gpu"},{"pool":"gpu"}]}`, "invalid_argument", "INVALID_FIELD", "pools[1].pool: names"},
	{"the pool of a policy", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","pools":[{"pool":"policy/p"}]}`, "invalid_argument", "INVALID_FIELD", "pools[0].pool: begins with policy/"},
	{"negative weight", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","pools":[{"pool":"gpu","weight":-1}]}`, "invalid_argument", "INVALID_FIELD", "pools[0].weight: is -1"},
	{"weight above the pool", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","pools":[{"pool":"gpu","weight":3}]}`, "invalid_argument", "INVALID_FIELD", `pools: the weight for "gpu" is above its 2 slots`},
	{"negative tokens", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","tokens":"-1"}`, "invalid_argument", "INVALID_FIELD", "tokens: is -1"},
	{"tokens that overflow", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","tokens":"9223372036854775807"}`, "invalid_argument", "INVALID_FIELD", "tokens: is 9223372036854775807"},
	{"tokens beyond 64 bits", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","tokens":"9223372036854775808"}`, "invalid_argument", "INVALID_FIELD", "tokens"},
	{"zero ttl", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","ttl":"0s"}`, "invalid_argument", "INVALID_FIELD", "ttl: is 0s"},
	{"ttl of a nanosecond", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","ttl":"0.000000001s"}`, "invalid_argument", "INVALID_FIELD", "ttl: is 0.000000001s"},
	{"ttl of two hours", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","ttl":"7200s"}`, "invalid_argument", "INVALID_FIELD", "ttl: is 7200s; it must be from 1s to 3600s"},
	{"negative wait", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","wait":"-1s"}`, "invalid_argument", "INVALID_FIELD", "wait: is -1s"},
	{"arguments twice", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","arguments":{},"argumentsJson":"{}"}`, "invalid_argument", "INVALID_FIELD", "argumentsJson: is given beside arguments"},
	{"arguments that are a list", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","argumentsJson":"[]"}`, "invalid_argument", "INVALID_FIELD", "argumentsJson: is a JSON list"},
	{"arguments that are no JSON", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","argumentsJson":"{"}`, "invalid_argument", "INVALID_FIELD", "argumentsJson: invalid JSON at byte"},
	{"arguments with a key twice", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","argumentsJson":"{\"a\":1,\"a\":2}"}`, "invalid_argument", "INVALID_FIELD", "duplicate key"},
	{"a number beyond doubles", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","contextJson":"{\"a\":1e400}"}`, "invalid_argument", "INVALID_FIELD", "contextJson"},
	{"a field misspelt", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","max_hodl":"1s"}`, "invalid_argument", "INVALID_FIELD", "max_hodl"},
	{"a body that is no JSON", "CallService/BeginCall", `{"sessionId":`, "invalid_argument", "INVALID_FIELD", "is no JSON: unexpected end of JSON input"},
	{"an empty body", "CallService/BeginCall", ``, "invalid_argument", "INVALID_FIELD", "body is empty"},
	{"call id reused", "CallService/BeginCall", `{"sessionId":"s","callId":"c","tool":"other"}`, "invalid_argument", "ID_REUSED", `callId "c" of sessionId "s"`},
	{"ended call id reused", "CallService/BeginCall", `{"sessionId":"s","callId":"e","tool":"other"}`, "invalid_argument", "ID_REUSED", `callId "e"`},
	{"end without begin", "CallService/EndCall", `{"sessionId":"s","callId":"never","status":"STATUS_SUCCEEDED"}`, "not_found", "NOT_FOUND", `has no call "never"`},
	{"end without a status", "CallService/EndCall", `{"sessionId":"s","callId":"c"}`, "invalid_argument", "INVALID_FIELD", "status: is required"},
	{"end with another status", "CallService/EndCall", `{"sessionId":"s","callId":"e","status":"STATUS_FAILED"}`, "invalid_argument", "ID_REUSED", `callId "e"`},
	{"end in an unknown session", "CallService/EndCall", `{"sessionId":"nope","callId":"c","status":"STATUS_FAILED"}`, "not_found", "NOT_FOUND", "there is no session"},
	{"end with negative tokens", "CallService/EndCall", `{"sessionId":"s","callId":"c","status":"STATUS_FAILED","tokens":-1}`, "invalid_argument", "INVALID_FIELD", "tokens: is -1"},
	{"cancel of an unknown call", "CallService/CancelCall", `{"sessionId":"s","callId":"never"}`, "not_found", "NOT_FOUND", `has no call "never"`},
	{"an empty batch", "CallService/BatchCalls", `{}`, "invalid_argument", "INVALID_FIELD", "operations: is empty"},

	// Slots and pools.
	{"a pool of none", "SlotService/PutPool", `{"pool":"x","slots":0}`, "invalid_argument", "INVALID_FIELD", "slots: is 0"},
	{"a negative pool", "SlotService/PutPool", `{"pool":"x","slots":-1}`, "invalid_argument", "INVALID_FIELD", "slots: is -1"},
	{"a pool beyond 32 bits", "SlotService/PutPool", `{"pool":"x","slots":2147483648}`, "invalid_argument", "INVALID_FIELD", "slots"},
	{"a fraction of a slot", "SlotService/PutPool", `{"pool":"x","slots":1.5}`, "invalid_argument", "INVALID_FIELD", "slots"},
	{"a reserved name", "SlotService/PutPool", `{"pool":"policy/x","slots":1}`, "invalid_argument", "INVALID_FIELD", "pool: begins with policy/"},
	{"a negative queue", "SlotService/PutPool", `{"pool":"x","slots":1,"queueLimit":-1}`, "invalid_argument", "INVALID_FIELD", "queueLimit: is -1"},
	{"put-pool id reused", "SlotService/PutPool", `{"pool":"gpu","slots":3,"requestId":"put-gpu"}`, "invalid_argument", "ID_REUSED", `requestId "put-gpu"`},
	{"a pool that is named as a rate", "SlotService/PutPool", `{"pool":"rate/x","slots":1}`, "invalid_argument", "INVALID_FIELD", "pool: begins with rate/"},
	{"get a rate as a pool", "SlotService/GetPool", `{"pool":"rate/llm"}`, "invalid_argument", "INVALID_FIELD", "pool: is a rate"},
	{"a rate without a time", "LimitService/PutRate", `{"rate":"x","limit":1}`, "invalid_argument", "INVALID_FIELD", "per: is missing"},
	{"a rate of none", "LimitService/PutRate", `{"rate":"x","per":"1s"}`, "invalid_argument", "INVALID_FIELD", "limit: is 0"},
	{"a rate too fine", "LimitService/PutRate", `{"rate":"x","limit":1,"per":"0.05s"}`, "invalid_argument", "INVALID_FIELD", "per: is 0.05s; it must be from 0.1s to 86400s"},
	{"a rate with a reserved name", "LimitService/PutRate", `{"rate":"policy/x","limit":1,"per":"1s"}`, "invalid_argument", "INVALID_FIELD", "rate: begins with policy/"},
	{"put-rate id reused", "LimitService/PutRate", `{"rate":"llm","limit":3,"per":"1s","requestId":"put-llm"}`, "invalid_argument", "ID_REUSED", `requestId "put-llm"`},
	{"get an unknown rate", "LimitService/GetRate", `{"rate":"nope"}`, "not_found", "NOT_FOUND", `there is no rate "nope"`},
	{"delete an unknown rate", "LimitService/DeleteRate", `{"rate":"nope","requestId":"d"}`, "not_found", "NOT_FOUND", `there is no rate "nope"`},
	{"take from an unknown rate", "LimitService/TakeRate", `{"rate":"nope","requestId":"x"}`, "not_found", "NOT_FOUND", `there is no rate "nope"`},
	{"take from a policy", "LimitService/TakeRate", `{"rate":"policy/p/r","requestId":"x"}`, "invalid_argument", "INVALID_FIELD", "rate: begins with policy/"},
	{"take without an id", "LimitService/TakeRate", `{"rate":"llm"}`, "invalid_argument", "INVALID_FIELD", "requestId: is required"},
	{"take more than there is", "LimitService/TakeRate", `{"rate":"llm","requestId":"x","cost":3}`, "invalid_argument", "INVALID_FIELD", "cost: is 3"},
	{"begin at an unknown rate", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","rates":[{"rate":"nope"}]}`, "not_found", "NOT_FOUND", `there is no rate "nope"`},
	{"begin at a rate twice", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","rates":[{"rate":"llm"},{"rate":"llm"}]}`, "invalid_argument", "INVALID_FIELD", `rates[1].rate: names "llm" twice`},
	{"begin above a rate", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","rates":[{"rate":"llm","cost":3}]}`, "invalid_argument", "INVALID_FIELD", `rates: the cost at "llm" is above its limit of 2`},
	{"begin with two costs", "CallService/BeginCall", `{"sessionId":"s","callId":"x","tool":"t","rates":[{"rate":"llm","cost":1,"by":"COST_TOKENS"}]}`, "invalid_argument", "INVALID_FIELD", "rates[0].cost: is given beside COST_TOKENS"},
	{"get an unknown pool", "SlotService/GetPool", `{"pool":"nope"}`, "not_found", "NOT_FOUND", `there is no pool "nope"`},
	{"list an unknown pool", "SlotService/ListSlots", `{"pool":"nope"}`, "not_found", "NOT_FOUND", `there is no pool "nope"`},
	{"delete an unknown pool", "SlotService/DeletePool", `{"pool":"nope","requestId":"d"}`, "not_found", "NOT_FOUND", `there is no pool "nope"`},
	{"delete a pool in use", "SlotService/DeletePool", `{"pool":"gpu","requestId":"d"}`, "failed_precondition", "POOL_IN_USE", `pool "gpu"`},
	{"acquire from an unknown pool", "SlotService/AcquireSlot", `{"pool":"nope","slotId":"x"}`, "not_found", "NOT_FOUND", `there is no pool "nope"`},
	{"acquire from a policy", "SlotService/AcquireSlot", `{"pool":"policy/p","slotId":"x"}`, "invalid_argument", "INVALID_FIELD", "pool: begins with policy/"},
	{"acquire without an id", "SlotService/AcquireSlot", `{"pool":"gpu"}`, "invalid_argument", "INVALID_FIELD", "slotId: is required"},
	{"acquire more than there is", "SlotService/AcquireSlot", `{"pool":"gpu","slotId":"x","weight":3}`, "invalid_argument", "INVALID_FIELD", "weight: is 3"},
	{"slot id reused", "SlotService/AcquireSlot", `{"pool":"gpu","slotId":"slot","client":"w","weight":2}`, "invalid_argument", "ID_REUSED", `slotId "slot" of client "w"`},
	{"release of an unknown slot", "SlotService/ReleaseSlot", `{"pool":"gpu","slotId":"never","client":"w","token":"1"}`, "not_found", "NOT_FOUND", "slotId: "},
	{"release of another client", "SlotService/ReleaseSlot", `{"pool":"gpu","slotId":"slot","token":"1"}`, "not_found", "NOT_FOUND", `client "default" has no slot`},
	{"renew nothing", "SlotService/RenewSlots", `{"client":"w"}`, "invalid_argument", "INVALID_FIELD", "slots: is empty"},
	{"renew without a pool", "SlotService/RenewSlots", `{"client":"w","slots":[{"slotId":"slot","token":"1"}]}`, "invalid_argument", "INVALID_FIELD", "slots[0].pool: is required"},
	{"force whose", "SlotService/ForceRelease", `{"slotId":"c","sessionId":"s","holderClient":"w"}`, "invalid_argument", "INVALID_FIELD", "holderClient: is given beside sessionId"},

	// Policies.
	{"no files", "PolicyService/PutPolicy", `{"name":"x"}`, "invalid_argument", "INVALID_FIELD", "files: is empty"},
	{"files and yaml", "PolicyService/PutPolicy", `{"yaml":"name: x","files":[{"path":"a.yaml","content":"name: x"}]}`, "invalid_argument", "INVALID_FIELD", "yaml: is given beside files"},
	{"malformed YAML", "PolicyService/PutPolicy", `{"yaml":"name: x\nmax_tool_calls: [\n"}`, "invalid_argument", "INVALID_POLICY", "policy.yaml:"},
	{"a wrong type, with its line", "PolicyService/PutPolicy", `{"yaml":"name: x\n\nmax_tool_calls: many\n"}`, "invalid_argument", "INVALID_POLICY", "policy.yaml:3"},
	{"a negative limit", "PolicyService/PutPolicy", `{"yaml":"name: x\nmax_tool_calls: -1\n"}`, "invalid_argument", "INVALID_POLICY", "max_tool_calls must be a non-negative integer, got -1"},
	{"a YAML bomb", "PolicyService/PutPolicy", `{"yaml":"` + bomb + `"}`, "invalid_argument", "INVALID_POLICY", "policy.yaml:1"},
	{"an alias", "PolicyService/PutPolicy", `{"yaml":"name: &n x\nversion: *n\n"}`, "invalid_argument", "INVALID_POLICY", "policy.yaml:1"},
	{"a key twice", "PolicyService/PutPolicy", `{"yaml":"name: x\nname: y\n"}`, "invalid_argument", "INVALID_POLICY", "policy.yaml:2"},
	{"a path that climbs out", "PolicyService/PutPolicy", `{"files":[{"path":"../a.yaml","content":"name: x\nmax_tokens: 1\n"}]}`, "invalid_argument", "INVALID_POLICY", "../a.yaml"},
	{"more slots than there can be", "PolicyService/PutPolicy", `{"yaml":"name: x\nmax_concurrent: 4097\n"}`, "invalid_argument", "INVALID_POLICY", "max_concurrent must be at most 4096, got 4097"},
	{"a hash of no tool", "PolicyService/PutHash", `{"hash":"` + strings.Repeat("a", 64) + `"}`, "invalid_argument", "INVALID_FIELD", "tool: is required"},
	{"a hash that is none", "PolicyService/PutHash", `{"tool":"t","hash":"md5"}`, "invalid_argument", "INVALID_FIELD", "hash: must be the SHA-256 of the tool"},
	{"a hash that is missing", "PolicyService/PutHash", `{"tool":"t"}`, "invalid_argument", "INVALID_FIELD", "hash: must be"},
	{"delete the hash of no tool", "PolicyService/DeleteHash", `{}`, "invalid_argument", "INVALID_FIELD", "tool: is required"},
	{"explain nothing", "DecisionService/Explain", `{}`, "invalid_argument", "INVALID_FIELD", "decisionId: is required"},
	{"explain what is not there", "DecisionService/Explain", `{"decisionId":"nope"}`, "not_found", "NOT_FOUND", `no record of the decision "nope" is kept by n1`},
	{"get an unknown policy", "PolicyService/GetPolicy", `{"name":"nope"}`, "not_found", "NOT_FOUND", `there is no policy "nope"`},
	{"get no policy", "PolicyService/GetPolicy", `{}`, "invalid_argument", "INVALID_FIELD", "name: is required"},
	{"delete an unknown policy", "PolicyService/DeletePolicy", `{"name":"nope","requestId":"d"}`, "not_found", "NOT_FOUND", `there is no policy "nope"`},
	{"delete a pinned policy", "PolicyService/DeletePolicy", `{"name":"p","requestId":"d"}`, "failed_precondition", "POLICY_PINNED", "live sessions pin"},
	{"evaluate nothing", "PolicyService/Evaluate", `{"tool":"t"}`, "invalid_argument", "INVALID_FIELD", "policy: is required"},
	{"evaluate two things", "PolicyService/Evaluate", `{"tool":"t","sessionId":"s","policy":{"name":"p"}}`, "invalid_argument", "INVALID_FIELD", "sessionId: is given beside policy"},

	// Counters.
	{"no key", "CounterService/Get", `{}`, "invalid_argument", "INVALID_FIELD", "key: is required"},
	{"a key with NUL", "CounterService/Set", `{"key":"a\u0000","value":"1"}`, "invalid_argument", "INVALID_FIELD", "key: holds a control character"},
	{"an amount that is none", "CounterService/Increment", `{"key":"k","amount":"NaN","requestId":"i"}`, "invalid_argument", "INVALID_FIELD", "amount: must be a decimal"},
	{"an amount too fine", "CounterService/Increment", `{"key":"k","amount":"0.0000001","requestId":"i"}`, "invalid_argument", "INVALID_FIELD", "amount: must be a decimal"},
	{"an amount too large", "CounterService/Increment", `{"key":"k","amount":"9223372036854.775808","requestId":"i"}`, "invalid_argument", "INVALID_FIELD", "amount: must be a decimal"},
	{"an amount as a float", "CounterService/Increment", `{"key":"k","amount":"1e3","requestId":"i"}`, "invalid_argument", "INVALID_FIELD", "amount: must be a decimal"},
	{"a sum that overflows", "CounterService/Increment", `{"key":"big","amount":"0.000001","requestId":"i"}`, "invalid_argument", "OVERFLOW", "amount: the sum does not fit"},
	{"a text that is incremented", "CounterService/Increment", `{"key":"text","requestId":"i"}`, "failed_precondition", "NOT_A_NUMBER", `key "text"`},
	{"set id reused", "CounterService/Set", `{"key":"text","value":"others","requestId":"set-text"}`, "invalid_argument", "ID_REUSED", `requestId "set-text"`},
	{"a version that is none", "CounterService/Set", `{"key":"k","value":"v","ifVersion":"1"}`, "invalid_argument", "INVALID_FIELD", "ifVersion: is no version"},
	{"a version that is none, to delete", "CounterService/Delete", `{"key":"k","ifVersion":"x"}`, "invalid_argument", "INVALID_FIELD", "ifVersion: is no version"},
	{"another version", "CounterService/Set", `{"key":"text","value":"v","ifVersion":"0"}`, "failed_precondition", "VERSION_CONFLICT", `key "text": its version is `},
	{"a list without a key", "CounterService/Append", `{"items":["i"],"ttl":"60s"}`, "invalid_argument", "INVALID_FIELD", "key: is required"},
	{"no items", "CounterService/Append", `{"key":"k","ttl":"60s"}`, "invalid_argument", "INVALID_FIELD", "items: is empty"},
	{"no ttl", "CounterService/Append", `{"key":"k","items":["i"]}`, "invalid_argument", "INVALID_FIELD", "ttl: is required"},
	{"a ttl of 31 days", "CounterService/Append", `{"key":"k","items":["i"],"ttl":"2678400s"}`, "invalid_argument", "INVALID_FIELD", "ttl: is 2678400s"},
	{"a negative length", "CounterService/Append", `{"key":"k","items":["i"],"ttl":"60s","ifLength":"-1"}`, "invalid_argument", "INVALID_FIELD", "ifLength: is -1"},
	{"another length", "CounterService/Append", `{"key":"k","items":["i"],"ttl":"60s","ifLength":"1"}`, "failed_precondition", "VERSION_CONFLICT", "its length is 0"},
	{"a negative index", "CounterService/Range", `{"key":"k","from":"-1"}`, "invalid_argument", "INVALID_FIELD", "from: is -1"},
	{"too much at once", "CounterService/Range", `{"key":"k","limit":1001}`, "invalid_argument", "INVALID_FIELD", "limit: is 1001"},
	{"a list to delete without a key", "CounterService/DeleteList", `{}`, "invalid_argument", "INVALID_FIELD", "key: is required"},
	{"a scan of nothing known", "PolicyService/Scan", `{"policy":{"name":"p"},"text":"x"}`, "invalid_argument", "INVALID_FIELD", "kind: is required"},
	{"a scan by nothing", "PolicyService/Scan", `{"kind":"SCAN_KIND_INPUT","text":"x"}`, "invalid_argument", "INVALID_FIELD", "policy: is required"},
	{"no keys", "CounterService/BatchGet", `{}`, "invalid_argument", "INVALID_FIELD", "keys: is empty"},

	// Members, which memory has none of.
	{"add a node", "ClusterService/AddNode", `{"node":"n2","address":"127.0.0.1:1"}`, "failed_precondition", "NO_MEMBERS", "memory has no members"},
	{"remove a node without a name", "ClusterService/RemoveNode", `{}`, "invalid_argument", "INVALID_FIELD", "node: is required"},
}

// Whatever is wrong with a request, the error names it and says what to do, and
// nothing has changed.
func TestBadInput(t *testing.T) {
	n := furnished(t)
	before := n.everything()
	for _, c := range badInput {
		t.Run(c.name, func(t *testing.T) {
			status, answer := n.post(c.method, c.body)
			require.NotEqual(t, http.StatusOK, status, "%v", answer)
			require.Equal(t, c.code, answer["code"], "%v", answer)
			require.Contains(t, answer["message"], c.text)
			if c.reason != "" {
				require.Equal(t, c.reason, reasonIn(answer), "%v", answer)
			}
			require.Equal(t, before, n.everything(), "something changed")
		})
	}
}

// reasonIn is the reason in an error as Connect prints it in JSON.
func reasonIn(answer map[string]any) any {
	details, _ := answer["details"].([]any)
	for _, d := range details {
		if m, ok := d.(map[string]any); ok && m["type"] == "google.rpc.ErrorInfo" {
			debug, _ := m["debug"].(map[string]any)
			return debug["reason"]
		}
	}
	return nil
}

// The neighbours of a bad operation in its batch are unharmed.
func TestNeighboursInABatch(t *testing.T) {
	n := furnished(t)
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Tag: 1, Op: &v1.Operation_Begin{Begin: beginRequest("s", "b1")}},
		{Tag: 2, Op: &v1.Operation_Begin{Begin: beginRequest("s", "bad id")}},
		{Tag: 3, Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "s", CallId: "b1", Status: v1.Status_STATUS_SUCCEEDED}}},
		{Tag: 4, Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "s", CallId: "never", Status: v1.Status_STATUS_SUCCEEDED}}},
		{Tag: 5, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "b5", Client: "w"}}},
		{Tag: 6, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "nope", SlotId: "b6", Client: "w"}}},
		{Tag: 7},
		{Tag: 8, Op: &v1.Operation_Renew{Renew: &v1.RenewSlotsRequest{Client: "w", Slots: []*v1.SlotRef{
			{Pool: "gpu", SlotId: "slot", Token: 1}, {SlotId: "c", SessionId: "s", Token: 1}, {Pool: "gpu", SlotId: "gone"}}}}},
		{Tag: 9, Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: "slot", Client: "w", Token: 1}}},
		{Tag: 10, Op: &v1.Operation_Cancel{Cancel: &v1.CancelCallRequest{SessionId: "s", CallId: "c"}}},
	}})
	require.NoError(t, err)
	r := res.Results
	for i := range r {
		require.EqualValues(t, i+1, r[i].Tag)
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, r[0].GetBegin().GetOutcome())
	require.Equal(t, "invalid_argument", r[1].GetError().GetCode())
	require.Contains(t, r[1].GetError().GetMessage(), "operations[1].begin.callId: byte 3")
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, r[2].GetEnd().GetOutcome())
	require.Equal(t, "NOT_FOUND", r[3].GetError().GetReason())
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, r[4].GetAcquire().GetOutcome())
	require.Equal(t, "NOT_FOUND", r[5].GetError().GetReason())
	require.Contains(t, r[6].GetError().GetMessage(), "operations[6].op: is missing")
	renewed := r[7].GetRenew().GetResults()
	require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed[0].Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed[1].Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, renewed[2].Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, r[8].GetRelease().GetOutcome())
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, r[9].GetCancel().GetOutcome())
}
