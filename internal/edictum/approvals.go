package edictum

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"example.com/govnode/client"
	"example.com/govnode/engine/value"
	v1 "example.com/govnode/proto/govnode/v1"
)

// Approvals: asked for and polled by SDKs, decided by operators.

// approvals answers /v1/approvals and /v1/approvals/ID.
func (q *request) approvals() (any, error) {
	switch {
	case len(q.rest) > 1:
		return nil, refuse(http.StatusNotFound, "path: an approval is /v1/approvals/ID")
	case len(q.rest) == 1 && q.rest[0] != "":
		return q.approval(q.rest[0])
	case q.Method == http.MethodPost:
		return q.ask()
	}
	if err := q.methods(http.MethodGet, http.MethodPost); err != nil {
		return nil, err
	}
	return q.listApprovals()
}

// actions are what is done where nobody decides in time, in the words of both
// versions of the wire. True allows.
var actions = map[string]bool{"": false, "block": false, "deny": false, "allow": true}

func (q *request) ask() (any, error) {
	if err := q.asAgent(); err != nil {
		return nil, err
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	var texts [5]string
	for i, field := range []string{"tool_name", "message", "session_id", "timeout_action", "timeout_effect"} {
		if texts[i], err = text(body, field, i == 0); err != nil {
			return nil, err
		}
	}
	action := texts[3]
	if action == "" {
		action = texts[4]
	}
	allow, known := actions[action]
	if !known {
		return nil, refuse(http.StatusBadRequest, "timeout_action: it must be block or allow")
	}
	timeout := 5 * time.Minute
	if v, there := body.Get("timeout"); there && v.Kind() != value.Null {
		n, ok := v.AsFloat()
		if !ok || n < 1 || n > 24*60*60 {
			return nil, refuse(http.StatusBadRequest, "timeout: it must be a number of seconds, 1 to 86400")
		}
		timeout = time.Duration(n * float64(time.Second))
	}
	arguments, there := body.Get("tool_args")
	if !there || arguments.Kind() == value.Null {
		arguments = value.OfMap()
	}
	if arguments.Kind() != value.Map {
		return nil, refuse(http.StatusBadRequest, "tool_args: it must be an object")
	}
	a, err := q.api.RequestApproval(q.Context(), client.Question{
		Agent: q.agent, Tool: texts[0], ArgumentsJSON: arguments.JSON(), Message: texts[1], Session: texts[2],
		Timeout: timeout, AllowOnTimeout: allow,
	})
	if err != nil {
		return nil, err
	}
	return created{shown(a)}, nil
}

func (q *request) approval(id string) (any, error) {
	if q.Method != http.MethodPut {
		if err := q.methods(http.MethodGet, http.MethodPut); err != nil {
			return nil, err
		}
		a, err := q.api.GetApproval(q.Context(), id)
		if err != nil {
			return nil, err
		}
		return shown(a), nil
	}
	if err := q.operator(); err != nil {
		return nil, err
	}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	v, _ := body.Get("approved")
	yes, ok := v.AsBool()
	if !ok {
		return nil, refuse(http.StatusBadRequest, "approved: it must be true or false")
	}
	reason, err := text(body, "reason", false)
	if err != nil {
		return nil, err
	}
	vote := q.api.Deny
	if yes {
		vote = q.api.Approve
	}
	a, err := vote(q.Context(), id, client.Vote{Approver: q.key.Name, Reason: reason})
	var objection *client.Error
	if errors.As(err, &objection) && objection.Reason == client.ReasonSelfApproval {
		return nil, refuse(http.StatusForbidden, "the agent that asks cannot decide; let somebody else do it")
	}
	if err != nil {
		return nil, err
	}
	return shown(a), nil
}

// listApprovals shows operators what is open, and what ended within the last hour.
func (q *request) listApprovals() (any, error) {
	if err := q.operator(); err != nil {
		return nil, err
	}
	of := client.Approvals{Session: q.URL.Query().Get("session_id")}
	wanted := q.URL.Query().Get("status")
	all := []approval{}
	for page := ""; ; {
		res, err := q.api.ListApprovals(q.Context(), of, 0, page)
		if err != nil {
			return nil, err
		}
		for _, a := range res.GetApprovals() {
			if s := shown(a); wanted == "" || s.Status == wanted {
				all = append(all, s)
			}
		}
		if page = res.GetNextPageToken(); page == "" {
			return map[string]any{"approvals": all}, nil
		}
	}
}

// An approval is one as the SDKs read it.
type approval struct {
	ID             string          `json:"id"`
	Status         string          `json:"status"` // pending, approved, denied or timeout
	AgentID        string          `json:"agent_id"`
	ToolName       string          `json:"tool_name"`
	ToolArgs       json.RawMessage `json:"tool_args"` // redacted
	Message        string          `json:"message"`
	Timeout        float64         `json:"timeout"` // seconds
	TimeoutAction  string          `json:"timeout_action"`
	SessionID      *string         `json:"session_id"`
	DecidedBy      *string         `json:"decided_by"`
	DecisionReason *string         `json:"decision_reason"`
	CreatedAt      string          `json:"created_at"`
}

// statuses are the states of approvals in the SDKs' words. One that is used was
// approved before; one that is cancelled will never be.
var statuses = map[v1.ApprovalState]string{
	v1.ApprovalState_APPROVAL_STATE_PENDING:   "pending",
	v1.ApprovalState_APPROVAL_STATE_APPROVED:  "approved",
	v1.ApprovalState_APPROVAL_STATE_USED:      "approved",
	v1.ApprovalState_APPROVAL_STATE_DENIED:    "denied",
	v1.ApprovalState_APPROVAL_STATE_CANCELLED: "denied",
	v1.ApprovalState_APPROVAL_STATE_EXPIRED:   "timeout",
}

func shown(a *v1.Approval) approval {
	s := approval{
		ID: a.GetId(), Status: statuses[a.GetState()], AgentID: a.GetAgentId(), ToolName: a.GetTool(),
		ToolArgs: json.RawMessage(a.GetArguments()), Message: a.GetReason(), Timeout: a.GetTimeout().AsDuration().Seconds(),
		TimeoutAction: "block", CreatedAt: time.Now().Add(-a.GetAge().AsDuration()).UTC().Format(time.RFC3339Nano),
	}
	if !json.Valid(s.ToolArgs) { // it was cut
		s.ToolArgs, _ = json.Marshal(a.GetArguments())
	}
	if a.GetOnTimeout() == v1.OnTimeout_ON_TIMEOUT_ALLOW {
		s.TimeoutAction = "allow"
	}
	if a.GetSessionId() != "" {
		s.SessionID = &a.SessionId
	}
	// An approval to which nobody objected in time was decided by nobody: the SDK
	// does what it was told to do then.
	if a.GetByTimeout() {
		s.Status = "timeout"
		return s
	}
	if ballots := a.GetBallots(); len(ballots) > 0 && s.Status != "pending" && s.Status != "timeout" {
		last := ballots[len(ballots)-1]
		s.DecidedBy, s.DecisionReason = &last.Approver, &last.Reason
	}
	return s
}
