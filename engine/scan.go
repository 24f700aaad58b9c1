package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/redact"
)

// Scans of texts (adapter contract 7.3, 7.4): what goes to a model or comes from
// one, what is remembered, what agents say to each other.

// A ScanKind says what a text is.
type ScanKind uint8

// The kinds of texts.
const (
	ScanInput ScanKind = iota
	ScanOutput
	ScanMemory
	ScanMessage
)

// String is the kind as it stands in records.
func (k ScanKind) String() string { return [...]string{"input", "output", "memory", "message"}[k] }

// category is that of a denial for a blocked pattern.
func (k ScanKind) category() string {
	return [...]string{CategoryPatternInput, CategoryPatternOutput, CategoryPatternMemory, CategoryPatternMessage}[k]
}

// ActionRedact is the action of a scan after which the redacted text may be used.
const ActionRedact = "redact"

// Types of findings.
const (
	FindingPattern      = "blocked_pattern"
	FindingCredentials  = "credentials"
	FindingPersonalData = "personal_data"
)

// A Finding says what was found, and never the text itself.
type Finding struct {
	Type  string
	Rule  string // blocked_patterns[3], or what kind of data it is, such as email
	Count int    // of a blocked pattern 1, however often it occurs
}

// A ScanResult is the answer to a scan. The action is allow, deny or redact; with
// redact alone there is a redacted text.
type ScanResult struct {
	Decision Decision
	Findings []Finding
	Redacted string
}

// MaxScan is the longest text that is scanned.
const MaxScan = 64 << 10

// Scan judges a text: blocked patterns deny, and what is said of credentials and
// personal data is done. The strictest finding decides, and what cannot be judged
// is denied.
func (p *Policy) Scan(ctx context.Context, kind ScanKind, text string) ScanResult {
	start := time.Now()
	r := p.scan(ctx, kind, text)
	r.Decision.Policy, r.Decision.EvaluationTime = p.Name(), time.Since(start)
	return r
}

func (p *Policy) scan(ctx context.Context, kind ScanKind, text string) (r ScanResult) {
	if len(text) > MaxScan {
		r.Decision = denyScan(CategoryPolicyError, fmt.Sprintf("the text has %d bytes, the most is %d", len(text), MaxScan))
		r.Decision.Error = r.Decision.Reason
		return r
	}
	hits, err := p.blocked(ctx, text)
	for _, hit := range hits {
		r.Findings = append(r.Findings, Finding{FindingPattern, fmt.Sprintf("blocked_patterns[%d]", hit.Index), 1})
	}
	actions := map[redact.Class]governance.ScanAction{
		redact.Credentials: p.governance.Scan.Credentials, redact.PersonalData: p.governance.Scan.PersonalData,
	}
	redacted, found, clean := redact.Find(text, func(c redact.Class) bool { return actions[c] != governance.ScanOff })
	strictest := map[governance.ScanAction]bool{}
	for _, f := range found {
		r.Findings = append(r.Findings, Finding{typeOf(f.Class), f.Kind, f.Count})
		strictest[actions[f.Class]] = true
	}
	switch {
	case len(hits) > 0:
		r.Decision = denyScan(kind.category(), "the "+kind.String()+" holds "+findings(r.Findings))
	case strictest[governance.ScanDeny]:
		r.Decision = denyScan(CategoryScan, "the "+kind.String()+" holds "+findings(r.Findings))
	case err != nil:
		if errors.Is(err, context.DeadlineExceeded) {
			err = matching.ErrSearchTime
		}
		r.Decision = denyScan(CategoryPolicyError, err.Error())
		r.Decision.Error = err.Error()
	case !clean:
		r.Decision = denyScan(CategoryPolicyError, "what the text holds cannot be redacted: what is left of it is found again and again")
		r.Decision.Error = r.Decision.Reason
	case strictest[governance.ScanRedact]:
		r.Decision = Decision{Allowed: true, Action: ActionRedact, Reason: "redacted: " + findings(r.Findings)}
		r.Redacted = redacted
	default:
		r.Decision = Decision{Allowed: true, Action: string(Allow), Reason: "nothing was found"}
	}
	return r
}

// blocked returns the blocked patterns that a text holds.
func (p *Policy) blocked(ctx context.Context, text string) ([]pattern.Hit, error) {
	if len(p.governance.BlockedPatterns) == 0 {
		return nil, ctx.Err()
	}
	if p.ceiling != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.ceiling)
		defer cancel()
	}
	return p.governance.Patterns.Hits(ctx, pattern.FormsOfText(text))
}

func denyScan(category, reason string) Decision {
	return Decision{Action: string(Deny), Category: category, Reason: reason, PublicMessage: publicMessages[category]}
}

func typeOf(c redact.Class) string {
	if c == redact.Credentials {
		return FindingCredentials
	}
	return FindingPersonalData
}

// findings are those of a text in words, at most a handful of them.
func findings(all []Finding) string {
	const most = 8
	var words []string
	for _, f := range all[:min(len(all), most)] {
		words = append(words, f.Rule)
	}
	if more := len(all) - most; more > 0 {
		words = append(words, fmt.Sprintf("%d more", more))
	}
	return strings.Join(words, ", ")
}
