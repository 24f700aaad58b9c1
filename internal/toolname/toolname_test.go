package toolname

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Names that people give to tools are taken, in any language.
func TestNamesOfTools(t *testing.T) {
	for _, name := range []string{"", "exec", "Exec", "mcp__files__read", "a.b/c:d-e 2", "café", "größe", "поиск", "αναζήτηση", "検索tool", "データ", "도구", "søg_1", "חיפוש", "खोज", "🔧"} {
		require.Empty(t, Problem(name), "%q", name)
	}
}

// What looks like another name, or like nothing, is refused.
func TestDisguises(t *testing.T) {
	for name, why := range map[string]string{
		" exec": "space", "exec ": "space", "exec\u00a0": `another form of "exec "`,
		"ex\u200bec": "U+200B at byte 2", "exec\u200d": "U+200D", "\ufeffexec": "U+FEFF", "ex\u00adec": "U+00AD", "exec\u2060": "U+2060",
		"exec\ufe0f": "U+FE0F", "exec\U000e0061": "U+E0061", "exec\u3164": "U+3164", "exec\u115f": "U+115F", "exec\u034f": "U+034F", "exec\u2800": "U+2800",
		"exec\ue000": "U+E000", "exec\u0378": "U+0378", "exec\u17b4": "U+17B4",
		"ｅｘｅｃ": `another form of "exec"`, "𝐞𝐱𝐞𝐜": `another form of "exec"`, "cafe\u0301": "another form of", "ﬁnd": `another form of "find"`,
		"\u212aill": `another form of "Kill"`, "еxec": "U+0435 beside Latin", "exеc": "U+0435 beside", "οpen": "U+03BF beside", "eхec": "U+0445",
		"ехес": "no letter that does not pass", "ЅЕТ_1": "no letter", "ΤΟΝ": "no letter",
	} {
		require.Contains(t, Problem(name), why, "%+q", name)
	}
}
