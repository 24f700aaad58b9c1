package trail

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
)

func newTrail(t *testing.T) (*Trail, *processes.Node) {
	t.Helper()
	c, err := processes.New("none", processes.NewLoopback(), 1, func(string) string { return t.TempDir() })
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return New(c, t.TempDir(), time.Now()), c.Nodes[0]
}

// What verify names is explained by a node that was killed between what is known before
// and behind the place, and by nothing else.
func TestWhatExplainsMissingLines(t *testing.T) {
	const chain = "cdefault/c"
	for name, test := range map[string]struct {
		text  string
		death time.Duration
		want  bool
	}{
		"killed between":             {`/n1:7: change 2 of "cdefault/c" has no line before this one, which is change 3: removed, or lost`, 15 * time.Second, true},
		"killed before":              {`/n1:7: change 2 of "cdefault/c" has no line before this one, which is change 3: removed, or lost`, 9 * time.Second, false},
		"killed long after":          {`/n1:7: change 2 of "cdefault/c" has no line before this one, which is change 3: removed, or lost`, 40 * time.Second, false},
		"missing at the end":         {`/n1:7: the state has 4 changes of "cdefault/c", and the last line of one is this, of change 3: lines are missing`, 40 * time.Second, true},
		"missing before the kill":    {`/n1:7: the state has 4 changes of "cdefault/c", and the last line of one is this, of change 3: lines are missing`, 15 * time.Second, false},
		"its end is missing":         {`/n1:7: "cdefault/c" ended with change 4, of which no file has a line: removed`, 40 * time.Second, true},
		"its end has no line":        {`/n1:7: the state does not know change 3 of "cdefault/c": it is an older state`, 40 * time.Second, true},
		"a line that was changed":    {`/n1:7: line 7 of node n1 is not what was written, or the line before it is not`, 15 * time.Second, false},
		"an outcome that was":        {`/n1:7: change 3 of "cdefault/c" does not follow from the one before: what was said`, 15 * time.Second, false},
		"lines that were removed":    {`/n1:7: lines 5 to 6 of node n1 are missing before this one: removed`, 15 * time.Second, false},
		"an anchor that is gone":     {`/n1:7: line 9 of node n1 is missing at the end, as the anchor at k:1 of now says`, 15 * time.Second, false},
		"half a line where it began": {`/n1:1: this is no whole line of the log: it was cut off`, 15 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			trail, n := newTrail(t)
			j := &judge{
				Trail: trail, deaths: []span{{test.death, test.death}},
				files:  map[string]*file{"/n1": {node: n, ends: []int64{10}}},
				chains: map[string]map[uint64][]string{chain: {1: {"a"}, 3: {"b"}}},
				ops: map[string]check.Op{
					"a": {Call: 10 * time.Second, Return: 11 * time.Second, Outcome: check.Applied},
					"b": {Call: 20 * time.Second, Return: 21 * time.Second, Outcome: check.Applied},
				},
			}
			require.Equal(t, test.want, j.problem(test.text))
			require.Equal(t, test.want, len(j.broken) == 0)
		})
	}
}

// What nodes set of a workflow is asked for when its session is there, whatever time the
// id is of that they draw.
func TestWhenNodesSetAWorkflow(t *testing.T) {
	trail, _ := newTrail(t)
	j := &judge{Trail: trail}
	drawn := func(at time.Duration) string {
		return ulid.MustNew(ulid.Timestamp(trail.Start.Add(at)), rand.Reader).String()
	}
	for _, said := range []string{
		`{"do":"Set","client":"workflow","request_id":"` + drawn(time.Hour) + `","name":"s:c1-steps-` + drawn(3*time.Second) + `:workflow:steps:state"}`,
		// Of what it asks people the id is a digest, which is read as one of another time.
		`{"do":"Ask","client":"workflow","request_id":"stage-49ebd8ccb76b55be6bf099d75233c48f","name":"` + drawn(time.Hour) + `","session_id":"c1-` + drawn(3*time.Second) + `"}`,
	} {
		l, err := parse([]byte(`{"change":{"chain":"cdefault/workflow","n":7,"said":` + said + `}}`))
		require.NoError(t, err)
		require.InDelta(t, 3, j.asked(l.about()).Seconds(), 0.01, said)
	}
}

// What a power cut takes of a file is known, and young; what it leaves is what was there.
func TestWhatAPowerCutTakes(t *testing.T) {
	text := func(age time.Duration, n int) []byte {
		return fmt.Appendf(nil, `{"timestamp":%q,"change":{"chain":"c","n":%d,"said":{"do":"Increment","request_id":"r%d"}}}`+"\n", time.Now().Add(-age).Format(time.RFC3339Nano), n, n)
	}
	first, second, old := text(time.Minute, 1), text(0, 2), text(time.Minute, 2)
	for name, test := range map[string]struct {
		before, after []byte
		lost          bool
		broken        string
	}{
		"nothing":            {first, first, false, ""},
		"more was written":   {first, append(bytes.Clone(first), second...), false, ""},
		"a young line":       {append(bytes.Clone(first), second...), first, true, ""},
		"half of it":         {append(bytes.Clone(first), second...), append(bytes.Clone(first), second[:20]...), true, ""},
		"zeros in its place": {append(bytes.Clone(first), second...), append(append(bytes.Clone(first), second[:20]...), make([]byte, 20)...), true, ""},
		"an old line":        {append(bytes.Clone(first), old...), first, true, "flushed"},
		"another one":        {append(bytes.Clone(first), second...), append(bytes.Clone(first), bytes.ToUpper(second)...), false, "audit"},
	} {
		t.Run(name, func(t *testing.T) {
			trail, n := newTrail(t)
			n.Audit = filepath.Join(t.TempDir(), "audit.jsonl")
			require.NoError(t, os.WriteFile(n.Audit, test.before, 0o600))
			require.NoError(t, trail.Cut([]*processes.Node{n}, func() error { return os.WriteFile(n.Audit, test.after, 0o600) }))
			require.Equal(t, test.lost, trail.lost[place{"c", 2}])
			require.Equal(t, test.lost, trail.about["r2"])
			if test.broken == "" {
				require.Empty(t, trail.broken)
				return
			}
			require.Len(t, trail.broken, 1)
			require.Equal(t, test.broken, trail.broken[0].Check)
		})
	}
}
