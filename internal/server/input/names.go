package input

import (
	"strings"

	"example.com/govnode/engine"
	"example.com/govnode/internal/toolname"
	"example.com/govnode/session"
	"example.com/govnode/session/budget"
)

// Checks of fields that name what is put: pools, rates, values, trees of policies; and
// amounts of budgets.

// Pool checks the name of a pool that was put. The pools of policies belong to
// their calls.
func (f *Fields) Pool(field, name string) {
	f.ID(field, name)
	if strings.HasPrefix(name, session.PolicyPool("")) {
		f.Refuse(field, "begins with policy/, which is reserved for the pools of policies; choose another name")
	}
	if session.IsRate(name) {
		f.Refuse(field, "begins with rate/, which is reserved for rates; choose another name, or use LimitService")
	}
}

// PoolOrPolicy checks the name of a pool, of a policy's as well.
func (f *Fields) PoolOrPolicy(field, name string) {
	prefix := session.PolicyPool("")
	if len(name) > len(prefix) && name[:len(prefix)] == prefix {
		name = name[len(prefix):]
	}
	f.ID(field, name)
	if session.IsRate(name) {
		f.Refuse(field, "is a rate; read it with GetRate")
	}
}

// Rate checks the name of a rate that was put.
func (f *Fields) Rate(field, name string) {
	f.ID(field, name)
	if strings.HasPrefix(name, session.PolicyPool("")) {
		f.Refuse(field, "begins with policy/, which is reserved for the rates of policies; choose another name")
	}
}

// Amount checks an amount of a budget.
func (f *Fields) Amount(field, text string, least int64) int64 {
	n, err := ParseDecimal(text)
	if err != nil || n < least || n > budget.MaxAmount {
		f.Refuse(field, "must be a decimal from %s to %s with at most 6 digits behind the point", FormatDecimal(least), FormatDecimal(budget.MaxAmount))
	}
	return n
}

// Tool checks the name of a tool: a text that no other name can pass for.
func (f *Fields) Tool(field, name string) {
	f.Text(field, name, Caps.Tool)
	if problem := toolname.Problem(name); problem != "" && f.Err == nil {
		f.Refuse(field, "%s", problem)
	}
}

// Key checks the key of a value: any text without control characters.
func (f *Fields) Key(field, key string) { f.Text(field, key, Caps.CounterKey) }

// Digest reads the digest of a tree.
func (f *Fields) Digest(field, text string) session.Digest {
	return f.DigestOf(field, text, "no tree; take one from ListPolicies")
}

// DigestOf reads a digest; none says what one of zeros is of, and what to do.
func (f *Fields) DigestOf(field, text, none string) session.Digest {
	d, err := engine.ParseDigest(text)
	if err != nil {
		f.Refuse(field, "%v", err)
	} else if d == (engine.Digest{}) {
		f.Refuse(field, "is of %s", none)
	}
	return session.Digest(d)
}
