package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func scanPolicy(t testing.TB, yaml string, opts ...Option) *Policy {
	tree, err := SingleFile(yaml)
	require.NoError(t, err)
	p, err := Compile(tree, opts...)
	require.NoError(t, err)
	return p
}

// What a policy says of texts, by what they hold. The strictest finding decides.
func TestScan(t *testing.T) {
	const (
		secret = "the key is sk-abcdefghijklmnopqrst"
		person = "write to jane@example.org, jane@example.com"
	)
	for _, c := range []struct {
		name, yaml, text    string
		action, category    string
		redacted            string
		findings            []Finding
		neverSaid, mustNote string
	}{
		{name: "nothing", yaml: "max_attempts: 9", text: "hello", action: "allow"},
		{name: "empty", yaml: "max_attempts: 9", text: "", action: "allow"},
		{name: "no governance", yaml: "rules: []\n", text: secret, action: "deny", category: CategoryScan, findings: []Finding{{FindingCredentials, "access_key", 1}}},
		{name: "credentials, by default", yaml: "max_attempts: 9", text: secret, action: "deny", category: CategoryScan, findings: []Finding{{FindingCredentials, "access_key", 1}}},
		{name: "personal data, by default", yaml: "max_attempts: 9", text: person, action: "redact",
			redacted: "write to [REDACTED:email], [REDACTED:email]", findings: []Finding{{FindingPersonalData, "email", 2}}},
		{name: "both", yaml: "max_attempts: 9", text: secret + person, action: "deny", category: CategoryScan,
			findings: []Finding{{FindingCredentials, "access_key", 1}, {FindingPersonalData, "email", 2}}},
		{name: "a pattern", yaml: "blocked_patterns: [drop, {pattern: 'rm\\s+-rf', type: regex}]", text: "RM  -rf /; DROP", action: "deny", category: CategoryPatternOutput,
			findings: []Finding{{FindingPattern, "blocked_patterns[0]", 1}, {FindingPattern, "blocked_patterns[1]", 1}}},
		{name: "a pattern and more", yaml: "blocked_patterns: [jane]", text: person, action: "deny", category: CategoryPatternOutput,
			findings: []Finding{{FindingPattern, "blocked_patterns[0]", 1}, {FindingPersonalData, "email", 2}}},
		{name: "credentials redacted", yaml: "scan: {credentials: redact}", text: secret, action: "redact", redacted: "the key is [REDACTED:access_key]",
			findings: []Finding{{FindingCredentials, "access_key", 1}}},
		{name: "credentials off", yaml: "scan: {credentials: off}", text: secret + person, action: "redact",
			redacted: secret + "write to [REDACTED:email], [REDACTED:email]", findings: []Finding{{FindingPersonalData, "email", 2}}},
		{name: "personal data denied", yaml: "scan: {personal_data: deny}", text: person, action: "deny", category: CategoryScan, findings: []Finding{{FindingPersonalData, "email", 2}}},
		{name: "all off", yaml: "scan: {credentials: off, personal_data: off}", text: secret + person, action: "allow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := scanPolicy(t, c.yaml).Scan(t.Context(), ScanOutput, c.text)
			require.Equal(t, c.action, r.Decision.Action)
			require.Equal(t, c.action != "deny", r.Decision.Allowed)
			require.Equal(t, c.category, r.Decision.Category)
			require.Equal(t, c.redacted, r.Redacted)
			require.Equal(t, c.findings, r.Findings)
			require.Empty(t, r.Decision.Error)
			require.Equal(t, r.Decision.Allowed, r.Decision.PublicMessage == "")
			for _, part := range []string{"sk-abc", "jane@"} {
				require.NotContains(t, r.Decision.Reason+fmt.Sprint(r.Findings), part)
			}
		})
	}
}

// What cannot be judged is denied, and says so.
func TestScanFailsClosed(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for name, yaml := range map[string]string{"patterns": "blocked_patterns: [a]", "none": "max_attempts: 9"} {
		for _, text := range []string{"aaa", "write to jane@example.org"} { // with what would be redacted, too
			r := scanPolicy(t, yaml).Scan(done, ScanInput, text)
			require.False(t, r.Decision.Allowed, name)
			require.Equal(t, CategoryPolicyError, r.Decision.Category, name)
			require.NotEmpty(t, r.Decision.Error, name)
			require.Empty(t, r.Redacted, name)
		}
	}
	r := scanPolicy(t, "blocked_patterns: [a]", WithCeiling(time.Nanosecond)).Scan(t.Context(), ScanInput, strings.Repeat("a", MaxScan))
	require.False(t, r.Decision.Allowed)
	require.NotEmpty(t, r.Decision.Category)

	p := scanPolicy(t, "max_attempts: 9")
	require.True(t, p.Scan(t.Context(), ScanInput, strings.Repeat("a", MaxScan)).Decision.Allowed)
	require.False(t, p.Scan(t.Context(), ScanInput, strings.Repeat("a", MaxScan+1)).Decision.Allowed)
}

// A text is searched as it is, as matches_pattern does (adapter contract 4.3): a glob is
// anchored at its end alone, and nothing is found in quotes or escapes that are not there.
func TestScanSearchesTheTextItself(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		found         bool
	}{
		{"{pattern: secret.key, type: glob}", "read /etc/SECRET.KEY", true},
		{"{pattern: secret.key, type: glob}", "secret.key is read", false},
		{"{pattern: 'rm *', type: glob}", "please rm x", true},
		{"{pattern: '^two$', type: regex}", "two", true},
		{`"'"`, "a plain text", false},
		{`"'"`, "it's quoted", true},
		{`'"'`, "a plain text", false},
		{`'\n'`, "one\ntwo", false},
		{`'C:\temp'`, `in C:\temp`, true},
	} {
		r := scanPolicy(t, "blocked_patterns: ["+c.pattern+"]").Scan(t.Context(), ScanInput, c.text)
		require.Equal(t, !c.found, r.Decision.Allowed, "%s in %q: %v", c.pattern, c.text, r.Findings)
	}
}

// Every kind of text has a category of its own.
func TestScanKinds(t *testing.T) {
	p := scanPolicy(t, "blocked_patterns: [bad]")
	for kind, category := range map[ScanKind]string{ScanInput: "blocked_pattern_input", ScanOutput: "blocked_pattern_output",
		ScanMemory: "blocked_pattern_memory", ScanMessage: "blocked_pattern_message"} {
		r := p.Scan(t.Context(), kind, "bad")
		require.Equal(t, category, r.Decision.Category)
		require.Contains(t, r.Decision.Reason, kind.String())
	}
}

// What a policy says of scans is read with its line, and written as it was read.
func TestScanFields(t *testing.T) {
	p := scanPolicy(t, "scan: {credentials: redact}")
	scan, ok := p.Governance().Dict().Get("scan")
	require.True(t, ok)
	require.JSONEq(t, `{"credentials":"redact","personal_data":"redact"}`, scan.JSON())
	_, ok = scanPolicy(t, "scan: {credentials: deny}").Governance().Dict().Get("scan")
	require.False(t, ok, "that is what it is without")
	for yaml, says := range map[string]string{
		"name: p\nscan: deny":                   "scan must be a mapping",
		"name: p\nscan: {credentials: maybe}":   "scan.credentials must be off, redact or deny, got 'maybe'",
		"name: p\nscan: {credentials: true}":    "scan.credentials must be off, redact or deny",
		"name: p\nscan: {personal-data: allow}": "scan.personal-data must be off, redact or deny",
		"name: p\nscan: {personal-data: deny}":  "unknown field",
		"name: p\nscan: {credential: deny}":     "credentials",
	} {
		tree, err := SingleFile(yaml)
		require.NoError(t, err)
		_, err = Compile(tree)
		require.ErrorContains(t, err, says, yaml)
		require.ErrorContains(t, err, "policy.yaml:2", yaml)
	}
}

// Whatever a text holds, nothing that is looked for is left in what may be used,
// and a second scan of it finds nothing.
func FuzzScan(f *testing.F) {
	for _, text := range []string{
		"jane@example.org", "password=x", "sk-abcdefghijklmnopqrst", "123-45-6789password=x", "a@b.cotoken=x", "Bearer abcdefgh", "eyJhbGciOiJI.eyJzdWIiOi.c2ln",
		"-----BEGIN PRIVATE KEY-----MII", "4111111111111111", "rm -rf", "\xff\xfe", "secret=[REDACTED:email]", "blocked", "",
	} {
		f.Add(text)
	}
	redacting := scanPolicy(f, "blocked_patterns: [blocked]\nscan: {credentials: redact, personal_data: redact}")
	denying := scanPolicy(f, "blocked_patterns: [blocked]\nscan: {credentials: deny, personal_data: deny}")
	f.Fuzz(func(t *testing.T, text string) {
		strict, r := denying.Scan(t.Context(), ScanMemory, text), redacting.Scan(t.Context(), ScanMemory, text)
		require.NotEqual(t, ActionRedact, strict.Decision.Action)
		require.Equal(t, r.Decision.Action == ActionRedact, r.Redacted != "")
		require.Equal(t, strict.Decision.Allowed, r.Decision.Action == string(Allow), "what is redacted is denied where it is to be")
		if r.Decision.Action == ActionRedact {
			again := denying.Scan(t.Context(), ScanMemory, r.Redacted)
			require.True(t, again.Decision.Allowed || strings.Contains(strings.ToLower(r.Redacted), "blocked") || len(r.Redacted) > MaxScan, "%q became %q, in which %v are", text, r.Redacted, again.Findings)
		}
	})
}
