package edictum_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// What is said beside an output depends on what the tool may change, what it returned, and
// whether a rule could judge that.
func TestAfterByKindOfTool(t *testing.T) {
	tools := strings.Replace(head, "read: {side_effect: read}", "look: {side_effect: read}, calm: {side_effect: pure}, save: {side_effect: write}, drop: {side_effect: irreversible}", 1)
	d, err := edictum.Parse("a.yaml", []byte(tools+
		"- {id: w, type: post, tool: '*', when: {output.text: {contains: odd}}, then: {action: warn, message: odd.}}\n"+
		"- {id: s, type: post, tool: '*', when: {output.text: {contains: gone}}, then: {action: block, message: gone.}}\n"+
		"- {id: r, type: post, tool: '*', when: {output.text: {matches: 'sk-[a-z]+'}}, then: {action: redact, message: key.}}\n"+
		"- {id: n, type: post, tool: '*', when: {result.n: {gt: 5}}, then: {action: warn, message: many.}}\n"))
	require.NoError(t, err)
	rs, err := edictum.Compile(d)
	require.NoError(t, err)
	const executed = " Tool already executed — assess before proceeding."
	for _, c := range []struct {
		tool string
		out  edictum.Output
		want edictum.Result // of what is named
	}{
		{"look", edictum.Output{Value: value.OfString("odd")}, edictum.Result{Output: value.OfString("odd"), Warnings: []string{"⚠️ odd. Consider retrying."}}},
		{"calm", edictum.Output{Value: value.OfString("odd")}, edictum.Result{Output: value.OfString("odd"), Warnings: []string{"⚠️ odd. Consider retrying."}}},
		{"save", edictum.Output{Value: value.OfString("odd")}, edictum.Result{Output: value.OfString("odd"), Warnings: []string{"⚠️ odd." + executed}}},
		{"drop", edictum.Output{Value: value.OfString("odd")}, edictum.Result{Output: value.OfString("odd"), Warnings: []string{"⚠️ odd." + executed}}},
		{"unknown", edictum.Output{Value: value.OfString("odd")}, edictum.Result{Output: value.OfString("odd"), Warnings: []string{"⚠️ odd." + executed}}},
		// What failed has the text of its error for an output.
		{"look", edictum.Output{Error: "no sk-abc"}, edictum.Result{Output: value.OfString("no [REDACTED]"), Changed: true, Warnings: []string{"⚠️ Content redacted by r."}}},
		// What is suppressed stays so, whatever comes behind.
		{"look", edictum.Output{Value: value.OfString("gone sk-abc")}, edictum.Result{
			Output: value.OfString("[OUTPUT SUPPRESSED] gone."), Changed: true, Suppressed: true,
			Warnings: []string{"⚠️ Output suppressed by s.", "⚠️ Content redacted by r."},
		}},
		{"save", edictum.Output{Value: value.OfString("sk-abc")}, edictum.Result{
			Output: value.OfString("[REDACTED]"), Changed: true, Warnings: []string{"⚠️ Content redacted by r.", "⚠️ key." + executed},
		}},
		{"look", edictum.Output{Value: value.OfMap(value.Pair{Key: "n", Value: value.OfString("6")})}, edictum.Result{
			Output: value.OfMap(value.Pair{Key: "n", Value: value.OfString("6")}), PolicyError: true, Warnings: []string{"⚠️ many. Consider retrying."},
		}},
	} {
		got := rs.After(&edictum.Call{Tool: c.tool}, c.out)
		require.Equal(t, c.want.Output.JSON(), got.Output.JSON(), "%+v", c)
		require.Equal(t, []any{c.want.Changed, c.want.Suppressed, c.want.PolicyError, false}, []any{got.Changed, got.Suppressed, got.PolicyError, got.Passed}, "%+v", c)
		require.Equal(t, c.want.Warnings, got.Warnings, "%+v", c)
		require.True(t, got.Told())
	}
	require.True(t, rs.ReviewsAny() && rs.Reviews("look"))
	fine := rs.After(&edictum.Call{Tool: "look"}, edictum.Output{Value: value.OfString("fine")})
	require.True(t, fine.Passed && !fine.Told())
}
