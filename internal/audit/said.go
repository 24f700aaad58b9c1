package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"example.com/govnode/engine"
	"example.com/govnode/session"
)

// Said is what the audit says of a command: who asked for what. It depends on the
// command alone, so that whoever has the command finds the same digest. It has no
// arguments, outputs or values.
type Said struct {
	Do        string `json:"do"` // name of the command
	Namespace string `json:"namespace"`
	Principal string `json:"principal,omitempty"` // hash of his name; see session.PrincipalOf
	Behalf    bool   `json:"behalf,omitempty"`    // the node asks for itself
	Client    string `json:"client,omitempty"`
	Request   string `json:"request_id,omitempty"`
	Session   string `json:"session_id,omitempty"`
	Call      string `json:"call_id,omitempty"`
	Agent     string `json:"agent_id,omitempty"`
	Tool      string `json:"tool_name,omitempty"`
	Name      string `json:"name,omitempty"` // of what is changed: a pool, a policy, a key, a token
	Digest    string `json:"policy_digest,omitempty"`
	Rule      uint16 `json:"rule,omitempty"`   // number of the rule that decided, in the pinned tree
	Judged    string `json:"judged,omitempty"` // what the policy said: allow or deny
	Vote      string `json:"vote,omitempty"`
	How       string `json:"how,omitempty"` // of a change that is more than its name
}

// SayOf returns what is said of a command that somebody asks for.
func SayOf(c session.Command, a *session.Authority) Said {
	s := Said{Do: reflect.TypeOf(c).Elem().Name(), Namespace: c.Namespace()}
	s.Behalf = a.Behalf
	if a.Principal != (session.Principal{}) {
		s.Principal = hex.EncodeToString(a.Principal[:])
	}
	switch c := c.(type) {
	case *session.Open:
		s.Session, s.Agent, s.Name, s.Digest = c.Session, c.Agent, c.Policy, c.Digest.String()
	case *session.Begin:
		s.Session, s.Call, s.Tool, s.Digest, s.Rule = c.Session, c.Call, engine.Redact(c.Tool), c.Digest.String(), c.Verdict.Rule
		if s.Judged = "deny"; c.Verdict.Allow {
			s.Judged = "allow"
		}
	case *session.End:
		s.Session, s.Call, s.How = c.Session, c.Call, "status "+strconv.Itoa(int(c.Status))+", "+strconv.FormatInt(c.Tokens, 10)+" tokens"
	case *session.Cancel:
		s.Session, s.Call, s.Client = c.Session, c.Call, c.Client
	case *session.Close:
		s.Session, s.Digest = c.Session, c.Digest.String()
		if c.Killed {
			s.How = "killed"
		}
	case *session.Acquire:
		s.Client, s.Request, s.Name, s.How = c.Client, c.Slot, c.Pool, fmt.Sprintf("weight %d", c.Weight)
	case *session.Renew:
		s.Client, s.Session, s.Request = c.Client, c.Session, c.ID
	case *session.Release:
		s.Client, s.Request, s.Name = c.Client, c.Slot, c.Pool
	case *session.TakeRate:
		s.Client, s.Request, s.Name, s.How = c.Client, c.ID, c.Rate, fmt.Sprintf("cost %d", c.Cost)
	case *session.ForceRelease:
		s.by(c.By)
		s.Session, s.Name, s.How = c.Session, c.Holder, c.ID
	case *session.PutPool:
		s.by(c.By)
		s.Name, s.How = c.Pool, fmt.Sprintf("slots %d, threshold %d, queue %d", c.Slots, c.Threshold, c.Queue)
	case *session.DeletePool:
		s.by(c.By)
		s.Name, s.How = c.Pool, forced(c.Force)
	case *session.PutPolicy:
		s.by(c.By)
		s.Name, s.Digest = c.Name, c.Digest.String()
	case *session.DeletePolicy:
		s.by(c.By)
		s.Name, s.Digest = c.Name, c.Digest.String()
	case *session.Set:
		s.by(c.By)
		s.Name = c.Key
	case *session.Delete:
		s.by(c.By)
		s.Name = c.Key
	case *session.Increment:
		s.by(c.By)
		s.Name, s.How = c.Key, fmt.Sprintf("%d millionths", c.Amount)
	case *session.PutHash:
		s.by(c.By)
		s.Tool, s.How = engine.Redact(c.Tool), c.Hash
	case *session.Repair:
		s.by(c.By)
		s.Name, s.How = c.Client, fmt.Sprintf("newer than %d", c.NewerThan)
	case *session.Signal:
		s.by(c.By)
		s.Name, s.How = c.Target.Name, fmt.Sprintf("signal %d of scope %d", c.Signal, c.Target.Scope)
	case *session.Ask:
		s.by(c.By)
		s.Name, s.Session, s.Agent, s.Tool = c.ID, c.Session, c.Agent, engine.Redact(c.Tool)
	case *session.Decide:
		s.by(c.By)
		s.Name, s.Session, s.Call, s.Agent = c.ID, c.Session, c.Call, c.Approver
		if s.Vote = "against"; c.Approve {
			s.Vote = "for"
		}
	case *session.CancelApproval:
		s.by(c.By)
		s.Name, s.Session, s.Call = c.ID, c.Session, c.Call
	case *session.PutStanding:
		s.by(c.By)
		s.Name, s.Agent, s.Tool, s.How = c.Of.ID(), c.Of.Name, engine.Redact(c.Of.Tool), fmt.Sprintf("uses %d, for %v", c.Uses, c.TTL)
	case *session.DeleteStanding:
		s.by(c.By)
		s.Name = c.ID
	case *session.PutBudget:
		s.by(c.By)
		s.Name, s.How = c.Budget, fmt.Sprintf("%d millionths, every %v, of %q", c.Amount, c.Per, c.Parent)
	case *session.AdjustBudget:
		s.by(c.By)
		s.Name, s.How = c.Budget, fmt.Sprintf("%d millionths", c.Amount)
	case *session.DeleteBudget:
		s.by(c.By)
		s.Name = c.Budget
	case *session.Append:
		s.by(c.By)
		s.Name, s.How = c.Key, fmt.Sprintf("%d items", len(c.Items))
	case *session.DeleteList:
		s.by(c.By)
		s.Name = c.Key
	case *session.PutRate:
		s.by(c.By)
		s.Name, s.How = c.Rate, fmt.Sprintf("%d every %v", c.Limit, c.Per)
	case *session.DeleteRate:
		s.by(c.By)
		s.Name = c.Rate
	case *session.PutToken:
		s.by(c.By)
		s.Name, s.How = c.Token.ID, fmt.Sprintf("roles %b, until %d, by %s", c.Token.Roles, c.Token.Expires, c.Token.By)
		if c.Token.Node != "" {
			s.How += ", for node " + c.Token.Node
		}
	case *session.RevokeToken:
		s.by(c.By)
		s.Name = c.ID
		if c.Node != "" {
			s.How = "for node " + c.Node
		}
	case *session.UseToken:
		s.by(c.By)
		s.Name, s.How = c.ID, "by node "+c.Node
	case *session.Deny:
		s.by(c.By)
		s.Name = c.Denied.Subject
	case *session.Allow:
		s.by(c.By)
		s.Name = c.Subject
	case *session.PutQuotas:
		s.by(c.By)
		s.How = fmt.Sprintf("%+v", c.Quotas)
	case *session.KeepKey:
		s.by(c.By)
	}
	return s
}

func (s *Said) by(m session.Maker) { s.Client, s.Request = m.Client, m.Request }

func forced(yes bool) string {
	if yes {
		return "by force"
	}
	return ""
}

// Text is the form of which Digest is taken, and that stands in the line.
func (s *Said) Text() []byte {
	b := appendText(make([]byte, 0, 320), `{"do":`, s.Do)
	b = appendText(b, `,"namespace":`, s.Namespace)
	b = appendSaid(b, `,"principal":`, s.Principal)
	if s.Behalf {
		b = append(b, `,"behalf":true`...)
	}
	b = appendSaid(b, `,"client":`, s.Client)
	b = appendSaid(b, `,"request_id":`, s.Request)
	b = appendSaid(b, `,"session_id":`, s.Session)
	b = appendSaid(b, `,"call_id":`, s.Call)
	b = appendSaid(b, `,"agent_id":`, s.Agent)
	b = appendSaid(b, `,"tool_name":`, s.Tool)
	b = appendSaid(b, `,"name":`, s.Name)
	b = appendSaid(b, `,"policy_digest":`, s.Digest)
	if s.Rule > 0 {
		b = strconv.AppendUint(append(b, `,"rule":`...), uint64(s.Rule), 10)
	}
	b = appendSaid(b, `,"judged":`, s.Judged)
	b = appendSaid(b, `,"vote":`, s.Vote)
	b = appendSaid(b, `,"how":`, s.How)
	return append(b, '}')
}

func appendText(b []byte, field, text string) []byte {
	b, _ = jsontext.AppendQuote(append(b, field...), text) // what is not UTF-8 is replaced
	return b
}

// appendSaid is appendText of what is left out where there is none.
func appendSaid(b []byte, field, text string) []byte {
	if text == "" {
		return b
	}
	return appendText(b, field, text)
}

// Digest is the digest of a text that was said.
func Digest(text []byte) session.Digest { return sha256.Sum256(text) }
