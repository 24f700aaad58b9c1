//go:build attack

package vectors

import "strings"

// A leave says where what is in fields may be found, and why.
type leave struct{ places, why string }

var (
	named  = leave{"audit errors log metrics data", "it is a name: the audit says who asked for what, errors say what is not there, logs and metrics what is looked at"}
	told   = leave{"audit data", "it is written to be read by whoever decides, or looks for why something was done"}
	judged = leave{"audit", "the audit has the facts that were judged, redacted; arguments and outputs are none of them"}
	keyed  = leave{"audit errors data", "it is the name of a fact or an attribute, and no value of one"}
	policy = leave{"audit errors data", "what is wrong with a policy is said with its text, and refusals are in the audit"}
	wrong  = leave{"errors", "what is wrong with it is said to whoever sent it; it holds no secret"}
	stored = leave{"data", "users store it, or what tells it again"}
	hashed = leave{"data", "it is the hash of a secret"}
)

// mayBe are the fields of which something may be found, by their own name or with that of
// the message. Whatever is not here may be nowhere, and nothing may be among the stacks.
var mayBe = map[string]leave{
	"session_id": named, "call_id": named, "slot_id": named, "request_id": named, "client": named, "holder_client": named, "agent_id": named, "pool": named,
	"rate": named, "budget": named, "parent": named, "key": named, "name": named, "tool": named, "namespace": named, "token_id": named, "node": named, "address": named,
	"policy_name": named, "digest": named, "policy_digest": named, "request_digest": named, "decision_id": named, "id": named, "signal": named, "parent_session_id": named,

	"/v1/sessions: a key": named, "/v1/approvals: an id": named, "/v1/approvals: session_id": named, "/v1/approvals: tool_name": named, "/v1/events: session_id": named,
	"/v1/rulesets: a name": named, "/v1/agents: a name": named, "/v1/a path": named, "the header X-Edictum-Agent-Id": named,

	"SignalRequest.reason": told, "DenySubjectRequest.reason": told, "ApprovalServiceRequestRequest.message": told, "ApprovalServiceDecideRequest.reason": told,
	"/v1/approvals: message": told,

	"BeginCallRequest.context": judged, "BeginCallRequest.context_json": judged, "BeginCallRequest.metadata": judged, "BeginCallRequest.metadata_json": judged,
	"EvaluateRequest.context": judged, "EvaluateRequest.context_json": judged, "EvaluateRequest.metadata": judged, "EvaluateRequest.metadata_json": judged,
	"BeginCallRequest.metadata: a key": keyed, "EvaluateRequest.metadata: a key": keyed, "CreateSessionRequest.attributes: a key": keyed,

	"PutPolicyRequest.yaml": policy, "TextFile.path": policy, "TextFile.content": policy,

	"unknown field": wrong, "the header Content-Type": wrong, "the header Content-Encoding": wrong, "the header Connect-Timeout-Ms": wrong,
	"the header Connect-Protocol-Version": wrong,

	"SetRequest.value": stored, "AppendRequest.items": stored, "CreateSessionRequest.attributes": stored, "AcquireSlotRequest.label": stored, "server_label": stored,
	"CreateTokenRequest.label": stored, "CreateTokenRequest.agents": stored, "CreateTokenRequest.policies": stored, "CreateTokenRequest.environment": stored,
	"/v1/sessions: value": stored, "/v1/events": stored, "/v1/approvals: reason": stored,

	"CreateSessionRequest.session_token_sha256": hashed, "CreateTokenRequest.secret_sha256": hashed,
}

// leaveOf returns where what is in a field may be found, and the entry that says so.
func leaveOf(field string) (entry string, l leave) {
	bare, of, _ := strings.Cut(field, " (")
	if _, behind, ok := strings.Cut(of, ")"); ok {
		bare += behind
	}
	_, name, _ := strings.Cut(bare, ".")
	for _, entry := range []string{bare, name} {
		if l, ok := mayBe[entry]; ok {
			return entry, l
		}
	}
	return "", leave{}
}
