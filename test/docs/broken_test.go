//go:build unix

package docs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A document with a fault fails, and says in which line. In these a tick stands
// for a fence.
func TestBrokenDocuments(t *testing.T) {
	for name, broken := range map[string]struct{ document, says string }{
		"a command that fails":            {"'sh\ntrue\n'\n\n'sh\nfalse\n'", "line 5: the block fails"},
		"a command in the middle":         {"'sh\nfalse\ntrue\n'", "line 1: the block fails"},
		"a command that is not there":     {"'sh\ngovnode frobnicate\n'", "no command \"frobnicate\""},
		"another exit code":               {"'sh exit=3\ngovnode policy frob\n'", "line 1: the block fails"},
		"a failure that does not come":    {"'sh exit=1\ntrue\n'", "line 1: the block fails"},
		"a variable that is not set":      {"'sh\necho $nowhere\n'", "unbound variable"},
		"another line":                    {"'sh\necho one\n'\n'text output\ntwo\n'", `line 4: the line "two" is not printed`},
		"lines in another order":          {"'sh\nprintf 'a\\nb\\n'\n'\n'text output\nb\na\n'", `the line "a" is not printed`},
		"another value":                   {"'sh\necho '{\"a\": {\"b\": 1}}'\n'\n'json output\n{\"a\": {\"b\": 2}}\n'", "value.a.b: shown is 2, printed 1"},
		"a field that is not printed":     {"'sh\necho '{\"a\": 1}'\n'\n'json output\n{\"b\": \"…\"}\n'", "value.b: shown, and not printed"},
		"a shorter list":                  {"'sh\necho '[1, 2]'\n'\n'json output\n[1]\n'", "value: shown is a list of 1"},
		"output of nothing":               {"'text output\na\n'", "no script stands above"},
		"JSON that is none":               {"'json\n{\"a\": 1,}\n'", "line 1: this is no JSON"},
		"a policy that is not valid":      {"'yaml\nname: a\nmax_tokens: -1\n'", "max_tokens must be a positive integer"},
		"a policy that warns":             {"'yaml\nname: a\nmax_tokns: 1\nmax_tokens: 1\n'", "max_tokns"},
		"Go that does not compile":        {"'go\npackage main\n\nfunc main() { frob() }\n'", "undefined: frob"},
		"Go that vet objects to":          {"'go\npackage main\n\nimport \"fmt\"\n\nfunc main() { fmt.Printf(\"%d\\n\", \"a\") }\n'", "%d"},
		"Go that fails":                   {"'go\npackage main\n\nfunc main() { panic(\"no\") }\n'", "panic: no"},
		"a language that nothing runs":    {"'ruby\nputs 1\n'", "is run by nothing"},
		"a block without a language":      {"'\necho\n'", "is run by nothing"},
		"a word that means nothing":       {"'sh exot=1\nfalse\n'", `cannot be "exot"`},
		"a block that is left out unsaid": {"'sh norun\nfalse\n'", "needs a reason"},
		"a block without an end":          {"'sh\nfalse\n", "has no end"},
		"an alert on no metric":           {"'yaml alerts\ngroups:\n  - name: g\n    rules:\n      - alert: A\n        expr: gov_frobs > 1\n'", "gov_frobs is not in docs/metrics.md"},
		"an alert in a file":              {"'yaml alerts file=a.yaml\ngroups:\n  - name: g\n    rules:\n      - alert: A\n        expr: gov_frobs > 1\n'", "gov_frobs is not in docs/metrics.md"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines := strings.Split(broken.document, "\n")
			for i := range lines {
				if rest, ok := strings.CutPrefix(lines[i], "'"); ok {
					lines[i] = "```" + rest
				}
			}
			list, _, err := blocks(strings.Join(lines, "\n"))
			if err == nil {
				err = runDocument(list)
			}
			require.ErrorContains(t, err, broken.says)
		})
	}
}

// A document without one is run to its end.
func TestSoundDocument(t *testing.T) {
	t.Parallel()
	list, _, err := blocks(strings.ReplaceAll(`
A function lasts, and so does what runs in the background.

'sh
say() { printf '{"said": "%s", "by": "me"}\n' "$1"; }
'

'sh terminal until="ready"
echo ready; sleep 100
'

'sh
say hello; say again
test -x bin/govnode
'

'json output
{"said": "h…o"}
{"said": "again"}
'

'sh exit=2
govnode policy frob
'

'text output
govnode: … no command "frob"…
'
`, "\n'", "\n```"))
	require.NoError(t, err)
	require.NoError(t, runDocument(list))
}
