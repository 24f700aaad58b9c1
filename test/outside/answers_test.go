//go:build outside

package outside

import (
	"bytes"
	"encoding/json"
)

// object is a JSON object.
type object = map[string]any

// number is an integer that JSON may carry as a text.
type number int64

// UnmarshalJSON takes both forms.
func (n *number) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(bytes.Trim(b, `"`), (*int64)(n))
}

type counters struct{ Attempts, Calls, Executions, Failures int }

type answer struct {
	Outcome    string
	Reason     string
	DecisionID string `json:"decisionId"`
	Decision   struct{ MatchedRule, PolicyDigest string }
	Grants     []struct {
		Pool  string
		Token number
	}
	Token    number
	Counters counters
	Index    number
}

type session struct {
	SessionID     string `json:"sessionId"`
	PolicyVersion int
	PolicyDigest  string
	counters
}

// session returns a session as it stands.
func (c *cluster) session(n node, id string) session {
	c.t.Helper()
	var got struct{ Session session }
	c.post(n, "SessionService/GetSession", object{"sessionId": id}, &got)
	return got.Session
}

// open puts a policy and creates a session under it.
func (c *cluster) open(id, yaml string) {
	c.t.Helper()
	n := c.list()[0]
	c.post(n, "PolicyService/PutPolicy", object{"name": id, "yaml": yaml}, nil)
	c.post(n, "SessionService/CreateSession", object{"sessionId": id, "agentId": "outside", "policy": object{"name": id}}, nil)
}
