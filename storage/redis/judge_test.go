package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What follows from what is found, by what the node knows.
func TestRedisJudge(t *testing.T) {
	t.Parallel()
	const zero = "0000000000000000000000000000000000000000"
	of := func(id, state string, generation uint32, replid, runid string, since uint64) *epoch {
		return epoch{state: state, id: id, generation: generation, replid: replid, runid: runid, since: since}.with()
	}
	e := of("e", epochOpen, 3, "p", "r", 0)
	// The same data on a Redis that was restarted since, as another node has found.
	restarted := of("e", epochOpen, 3, "q", "s", 9)
	same := primary{"master", "p", zero, "r", ""}
	again := primary{"master", "q", zero, "s", ""}
	third := primary{"master", "u", zero, "v", ""}
	knows := knowledge{epoch: e, swaps: 9, mark: 9}
	nothing := knowledge{}
	// A restore that is under way, or was cut off, and the same as its node knows it.
	half := of("h", epochRestore, 3, "p", "r", 0)
	knowsHalf := knowledge{epoch: half, swaps: 9, mark: 9}
	const adopts, open, shut, repeat, refused = "adopts", "open", "shut", "repeat", "refused"

	for name, c := range map[string]struct {
		f    found
		know knowledge
		then string // adopts: another epoch is written, of the same data; repeat: a restore has to be
	}{
		"first use":            {found{primary: same}, nothing, adopts},
		"a replica":            {found{primary: primary{"slave", "p", zero, "r", ""}}, nothing, refused},
		"the same":             {found{epoch: e, seq: 9, mark: 9, primary: same}, knows, open},
		"the same, new node":   {found{epoch: e, seq: 9, primary: same}, nothing, open},
		"the same, others on":  {found{epoch: e, seq: 12, mark: 9, primary: same}, knows, open},
		"read more than wrote": {found{epoch: e, seq: 9, mark: 4, primary: same}, knowledge{epoch: e, swaps: 9, mark: 4}, open},

		"restarted":                 {found{epoch: e, seq: 9, mark: 9, primary: again}, knows, adopts},
		"restarted, new node":       {found{epoch: e, seq: 9, primary: again}, nothing, adopts},
		"restarted with old data":   {found{epoch: e, seq: 8, mark: 8, primary: again}, knows, shut},
		"restarted, replica gone":   {found{epoch: e, seq: 9, mark: 9, primary: primary{"master", "q", zero, "r", ""}}, knows, adopts},
		"restarted, seen by others": {found{epoch: restarted, seq: 20, mark: 9, primary: again}, knows, open},
		// Others knew of 7 swaps, and have made 13 since; the node was away and knew of 9.
		"restarted with old data, others on":       {found{epoch: of("e", epochOpen, 3, "q", "s", 7), seq: 20, mark: 7, primary: again}, knows, shut},
		"the same, what it knew of was only read":  {found{epoch: of("e", epochOpen, 3, "q", "s", 7), seq: 20, mark: 7, primary: again}, knowledge{epoch: e, swaps: 9, mark: 7}, shut},
		"the same, and restarted once more":        {found{epoch: of("e", epochOpen, 3, "q", "s", 20), seq: 25, mark: 7, primary: again}, knows, shut},
		"the same, and restarted just now":         {found{epoch: of("e", epochOpen, 3, "q", "s", 7), seq: 20, mark: 7, primary: third}, knows, shut},
		"restarted twice with all":                 {found{epoch: of("e", epochOpen, 3, "q", "s", 12), seq: 20, mark: 9, primary: again}, knows, open},
		"restarted with old data, known to no one": {found{epoch: of("e", epochOpen, 3, "q", "s", 7), seq: 20, primary: again}, nothing, open},

		"reloaded an older copy in place":            {found{epoch: e, seq: 8, mark: 8, primary: same}, knows, shut},
		"reloaded an older copy, others on":          {found{epoch: e, seq: 20, mark: 8, primary: same}, knows, shut},
		"a copy from before this node, others on":    {found{epoch: e, seq: 20, mark: 0, primary: same}, knows, shut},
		"the marks are gone":                         {found{epoch: e, seq: 9, mark: 0, primary: same}, knows, shut},
		"reloaded the copy of a quarantine":          {found{epoch: of("d", epochShut, 2, "p", "r", 0), seq: 20, primary: same}, knows, shut},
		"reloaded the copy of an epoch from before":  {found{epoch: of("d", epochOpen, 2, "p", "r", 0), seq: 20, primary: same}, knows, shut},
		"reloaded the copy of a restore from before": {found{epoch: of("d", epochRestore, 2, "p", "r", 0), seq: 20, primary: same}, knows, repeat},

		"a replica was promoted":  {found{epoch: e, seq: 9, mark: 9, primary: primary{"master", "q", "p", "s", ""}}, knows, shut},
		"promoted, new node":      {found{epoch: e, seq: 9, primary: primary{"master", "q", "p", "s", ""}}, nothing, shut},
		"promoted, node behind":   {found{epoch: e, seq: 9, mark: 3, primary: primary{"master", "q", "p", "s", ""}}, knowledge{epoch: e, swaps: 3, mark: 3}, shut},
		"demoted, fed by another": {found{epoch: e, seq: 9, mark: 9, primary: primary{"master", "q", "u", "r", ""}}, knows, shut},
		"that, new node":          {found{epoch: e, seq: 9, primary: primary{"master", "q", "u", "r", ""}}, nothing, shut},
		"demoted and promoted":    {found{epoch: e, seq: 9, mark: 9, primary: primary{"master", "q", "p", "r", ""}}, knows, shut},

		"emptied":                             {found{primary: same}, knows, shut},
		"epoch or clock removed, new node":    {found{other: true, primary: same}, nothing, shut},
		"epoch or clock removed":              {found{other: true, seq: 9, mark: 9, primary: same}, knows, shut},
		"the list of namespaces is gone":      {found{epoch: e, seq: 9, mark: 9, maimed: "it is", primary: same}, knows, shut},
		"that, in a quarantine":               {found{epoch: of("f", epochShut, 3, "p", "r", 0), seq: 9, mark: 9, maimed: "it is", primary: same}, knows, open},
		"begun anew meanwhile":                {found{epoch: of("f", epochOpen, 0, "p", "r", 0), seq: 20, primary: same}, knows, shut},
		"begun anew, of the first generation": {found{epoch: of("f", epochOpen, 3, "p", "r", 0), seq: 20, primary: same}, knows, shut},
		"another epoch meanwhile":             {found{epoch: of("f", epochOpen, 4, "p", "r", 0), primary: same}, knows, open},
		"a restore meanwhile":                 {found{epoch: of("f", epochRestore, 3, "p", "r", 0), primary: same}, knows, open},

		"a restore, and a replica was promoted":     {found{epoch: half, seq: 9, mark: 9, primary: primary{"master", "q", "p", "s", ""}}, knowsHalf, repeat},
		"a restore, promoted, new node":             {found{epoch: half, seq: 9, primary: primary{"master", "q", "p", "s", ""}}, nothing, repeat},
		"a restore, and restarted with old data":    {found{epoch: half, seq: 8, mark: 8, primary: again}, knowsHalf, repeat},
		"a restore, and emptied":                    {found{primary: same}, knowsHalf, repeat},
		"a restore, and restarted":                  {found{epoch: half, seq: 9, mark: 9, primary: again}, knowsHalf, adopts},
		"a restore, and its beginning is lost":      {found{epoch: e, seq: 8, mark: 8, primary: primary{"master", "q", "p", "s", ""}}, knowsHalf, shut},
		"a restore that ended, and its end is lost": {found{epoch: half, seq: 9, primary: primary{"master", "q", "p", "s", ""}}, knowledge{epoch: of("g", epochOpen, 4, "p", "r", 0), swaps: 12, mark: 12}, repeat},

		"quarantine, restarted":    {found{epoch: of("f", epochShut, 3, "p", "r", 0), primary: again}, nothing, adopts},
		"quarantine, seen by many": {found{epoch: of("f", epochShut, 3, "p", "r", 0), primary: same}, knows, open},
	} {
		t.Run(name, func(t *testing.T) {
			v := judge(c.f, c.know, 100, 10)
			if c.then == refused {
				require.Error(t, v.err)
				return
			}
			require.NoError(t, v.err)
			require.Equal(t, c.then == shut || c.then == repeat, v.why != "", v.why)
			require.Equal(t, c.then != open, v.write)
			switch c.then {
			case repeat:
				require.Equal(t, epochRestore, v.epoch.state)
				require.NotContains(t, []string{"d", "e", "f", "g", "h"}, v.epoch.id)
				if c.know.epoch != nil {
					require.GreaterOrEqual(t, v.epoch.generation, c.know.epoch.generation)
				}
			case shut:
				require.Equal(t, epochShut, v.epoch.state)
				require.Equal(t, time.Duration(110), v.epoch.until)
				require.NotContains(t, []string{"d", "e", "f", "g", "h"}, v.epoch.id)
				if c.know.epoch != nil {
					require.GreaterOrEqual(t, v.epoch.generation, c.know.epoch.generation)
				}
			case adopts:
				require.Equal(t, c.f.seq, v.epoch.since, "whoever knew more than this is to notice")
				if c.f.epoch != nil {
					require.Equal(t, c.f.epoch.id, v.epoch.id)
					require.Equal(t, c.f.epoch.state, v.epoch.state)
				}
				require.Equal(t, []string{c.f.replid, c.f.runid}, []string{v.epoch.replid, v.epoch.runid})
			case open:
				require.Same(t, c.f.epoch, v.epoch)
			}
			read, err := parseEpoch(v.epoch.text)
			require.NoError(t, err)
			require.Equal(t, v.epoch, read)
		})
	}
}

// Data of another build is refused with what to do about it.
func TestRedisEpochOfAnotherBuild(t *testing.T) {
	t.Parallel()
	const rest = " open e 3 p r 0 9"
	_, err := parseEpoch("4" + rest)
	require.NoError(t, err)
	for text, says := range map[string]string{
		"3" + rest:            "an older build wrote",
		"5 of another nature": "a newer build wrote",
		"x" + rest:            "cannot read",
		"4 open":              "cannot read",
		"":                    "cannot read",
	} {
		_, err := parseEpoch(text)
		require.ErrorContains(t, err, says, "%q", text)
	}
}
