package governance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// Rates that a policy holds calls to: so many, or so many tokens, in a time.

// A RateScope says who shares a rate.
type RateScope string

// The scopes. ScopePolicy is the default.
const (
	ScopeSession   RateScope = "session"
	ScopeAgent     RateScope = "agent"
	ScopePolicy    RateScope = "policy"    // all sessions of the policy's name
	ScopeNamespace RateScope = "namespace" // all sessions whose policies have a rate of this name
)

// A RateLimit admits so much in each window of Per.
type RateLimit struct {
	Name  string
	Limit int64
	Per   time.Duration
	Scope RateScope
	Kinds []string // that it is of: tool, model, agent, handoff, sampling; empty: all
	Tools []string // globs of their names; empty: whatever is called
	// Tokens says that a call costs what it may use; else each costs 1.
	Tokens bool
}

// Bounds of rate_limits: what the state that counts against them can hold.
const (
	MaxRates     = 8
	MaxRateName  = 64
	MaxRateLimit = int64(1_000_000_000)
	MinRatePer   = 100 * time.Millisecond
	MaxRatePer   = 24 * time.Hour
	maxRateTools = 64
)

// Holds reports whether the rate is of a call.
func (l *RateLimit) Holds(kind, tool string) bool {
	if len(l.Kinds) > 0 && !slices.Contains(l.Kinds, kind) {
		return false
	}
	return len(l.Tools) == 0 || slices.ContainsFunc(l.Tools, func(glob string) bool { return pattern.FnMatch(tool, glob) })
}

var (
	rateFields = []string{"name", "limit", "per", "scope", "kinds", "tools", "cost"}
	rateScopes = []string{string(ScopeSession), string(ScopeAgent), string(ScopePolicy), string(ScopeNamespace)}
	rateKinds  = []string{"tool", "model", "agent", "handoff", "sampling"}
)

func (r reader) rateLimits(g *Policy) {
	f := r.holding("rate_limits", source.List, "list of mappings with name, limit and per")
	if len(f.Items) > MaxRates {
		r.Add(f.Line, "rate_limits", "rate_limits must have at most %d entries, got %d", MaxRates, len(f.Items))
		return
	}
	for i := range f.Items {
		field := fmt.Sprintf("rate_limits[%d]", i)
		l := r.rateLimit(&f.Items[i], field)
		if slices.ContainsFunc(g.RateLimits, func(o RateLimit) bool { return o.Name == l.Name }) {
			r.Add(f.Items[i].Line, field, "%s: the name %s is taken by another rate", field, value.Quote(l.Name))
		}
		g.RateLimits = append(g.RateLimits, l)
	}
}

func (r reader) rateLimit(n *source.Node, field string) RateLimit {
	l := RateLimit{Scope: ScopePolicy}
	if n.Kind != source.Map {
		r.Add(n.Line, field, "%s must be a mapping with name, limit and per, got %s", field, n.TypeName())
		return l
	}
	l.Name = r.text(n, field, "name")
	if problem := rateNameProblem(l.Name); l.Name != "" && problem != "" {
		r.Add(n.Line, field+".name", "%s.name %s", field, problem)
	}
	if f, ok := n.Get("limit"); ok {
		l.Limit = r.Count(f, field+".limit", 1, MaxRateLimit)
	} else {
		r.Add(n.Line, field+".limit", "%s.limit is missing; say how many calls or tokens a window admits", field)
	}
	if text := r.text(n, field, "per"); text != "" {
		f, _ := n.Get("per")
		per, err := time.ParseDuration(text)
		if err != nil || per < MinRatePer || per > MaxRatePer {
			r.Add(f.Line, field+".per", "%s.per must be a duration from %v to %v, for instance 1s, got %s", field, MinRatePer, "24h", f.Repr())
		}
		l.Per = per
	}
	if text, line := r.oneOf(n, field, "scope", rateScopes); line > 0 {
		l.Scope = RateScope(text)
	}
	if text, line := r.oneOf(n, field, "cost", []string{"calls", "tokens"}); line > 0 {
		l.Tokens = text == "tokens"
	}
	l.Kinds = r.texts(n, field, "kinds", len(rateKinds))
	for _, kind := range l.Kinds {
		if !slices.Contains(rateKinds, kind) {
			f, _ := n.Get("kinds")
			r.Add(f.Line, field+".kinds", "%s.kinds must be of %s, got %s", field, strings.Join(rateKinds, ", "), value.Quote(source.Clip(kind, 80)))
			break
		}
	}
	l.Tools = r.texts(n, field, "tools", maxRateTools)
	for _, k := range n.Keys {
		if !slices.Contains(rateFields, k.Text) {
			r.Add(k.Line, source.Join(field, k.Text), "unknown field%s; known are %s", nearest.Hint(k.Text, "", rateFields), strings.Join(rateFields, ", "))
		}
	}
	return l
}

// rateNameProblem says why the record of a rate cannot be named so.
func rateNameProblem(name string) string {
	if len(name) > MaxRateName {
		return fmt.Sprintf("must have at most %d bytes, got %d", MaxRateName, len(name))
	}
	odd := func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._:@-", c))
	}
	if strings.ContainsFunc(name, odd) {
		return "must be of A-Z a-z 0-9 . _ : @ -, got " + value.Quote(source.Clip(name, 80))
	}
	return ""
}

// oneOf reads a word that may be absent; its line is 0 then.
func (r reader) oneOf(n *source.Node, field, name string, words []string) (text string, line int) {
	f, ok := n.Get(name)
	if !ok {
		return "", 0
	}
	if f.Kind != source.String || !slices.Contains(words, f.Text) {
		r.Add(f.Line, field+"."+name, "%s.%s must be one of %s, got %s", field, name, strings.Join(words, ", "), f.Repr())
	}
	return f.Text, f.Line
}

// texts reads a list of texts that may be absent.
func (r reader) texts(n *source.Node, field, name string, most int) (texts []string) {
	f, ok := n.Get(name)
	if !ok {
		return nil
	}
	at := field + "." + name
	if f.Kind != source.List || len(f.Items) == 0 || len(f.Items) > most {
		r.Add(f.Line, at, "%s must be a list of 1 to %d texts, got %s", at, most, f.Repr())
		return nil
	}
	for i := range f.Items {
		item := &f.Items[i]
		if item.Kind != source.String || item.Text == "" || len(item.Text) > MaxToolName {
			r.Add(item.Line, at, "%s must hold texts of 1 to %d bytes, got %s", at, MaxToolName, item.Repr())
			return nil
		}
		texts = append(texts, item.Text)
	}
	return texts
}

// rateLimitValue writes a rate as it is read.
func rateLimitValue(l RateLimit) value.Value {
	cost := "calls"
	if l.Tokens {
		cost = "tokens"
	}
	pairs := []value.Pair{
		{Key: "name", Value: value.OfString(l.Name)},
		{Key: "limit", Value: value.OfInt(l.Limit)},
		{Key: "per", Value: value.OfString(l.Per.String())},
		{Key: "scope", Value: value.OfString(string(l.Scope))},
		{Key: "cost", Value: value.OfString(cost)},
	}
	if len(l.Kinds) > 0 {
		pairs = append(pairs, value.Pair{Key: "kinds", Value: value.ListOf(l.Kinds, value.OfString)})
	}
	if len(l.Tools) > 0 {
		pairs = append(pairs, value.Pair{Key: "tools", Value: value.ListOf(l.Tools, value.OfString)})
	}
	return value.OfMap(pairs...)
}
