package operate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// auditLog writes an audit log and returns its name.
func auditLog(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "audit.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// runAudit is what `govnode audit` prints with these arguments.
func runAudit(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := Audit()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// So many of the last lines are printed as are asked for, and no number below 0.
func TestTailPrintsTheLastLines(t *testing.T) {
	const log = "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n"
	for n, want := range map[string]string{"0": "", "1": "{\"n\":3}\n", "3": log, "9": log} {
		said, err := runAudit("tail", "--lines", n, auditLog(t, log))
		require.NoError(t, err)
		require.Equal(t, want, said, n)
	}
	_, err := runAudit("tail", "--lines", "-1", auditLog(t, log))
	var coded *terminal.ExitError
	require.ErrorAs(t, err, &coded)
	require.Equal(t, terminal.ExitUsage, coded.Code)
	require.ErrorContains(t, err, "lines: -1 (flag --lines)")
}

// What was compressed when it was rotated is read like the rest.
func TestCompressedLogsAreRead(t *testing.T) {
	const log = `{"event_type":"change","namespace":"n","timestamp":"2026-01-01T00:00:00Z"}` + "\n"
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write([]byte(log))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for _, name := range []string{auditLog(t, log), auditLog(t, packed.String())} {
		said, err := runAudit("query", "--event", "change", name)
		require.NoError(t, err)
		require.Equal(t, log, said)
		said, err = runAudit("verify", name)
		require.NoError(t, err)
		require.Contains(t, said, "1 lines, 0 changes of 0 chains, 0 problems")
	}
	_, err = runAudit("verify", auditLog(t, packed.String()[:20]))
	require.ErrorContains(t, err, "unexpected EOF")
}

// What is written between the last look at a file and its rotation is told, before
// what is in the new one.
func TestFollowingLosesNothingToARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		name := auditLog(t, "first\n")
		var told []string
		require.NoError(t, followFile(ctx, name, func(text []byte) error {
			if told = append(told, string(text)); string(text) == "new" {
				cancel()
			}
			return nil
		}, func() (bool, error) {
			old, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
			require.NoError(t, err)
			_, err = old.WriteString("last\n")
			require.NoError(t, err)
			require.NoError(t, old.Close())
			require.NoError(t, os.Rename(name, name+".1"))
			return true, os.WriteFile(name, []byte("new\n"), 0o600)
		}))
		require.Equal(t, []string{"first", "last", "new"}, told)
	})
}

// A new file that is there before the node is told to use it, as logrotate makes it, ends
// the reading of the old one only when there is something in it.
func TestFollowingReadsTheOldFileForAsLongAsItMayGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		name := auditLog(t, "first\n")
		write := func(name, text string) {
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
			require.NoError(t, err)
			_, err = f.WriteString(text)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		var told []string
		ended := make(chan error, 1)
		defer cancel()
		go func() {
			ended <- followFile(ctx, name, func(text []byte) error {
				told = append(told, string(text))
				return nil
			}, func() (bool, error) { return true, nil })
		}()
		looked := func(want ...string) { // some times, and found nothing else
			t.Helper()
			time.Sleep(4 * tailEvery)
			synctest.Wait()
			require.Equal(t, want, told)
		}
		looked("first")
		require.NoError(t, os.Rename(name, name+".1"))
		write(name+".1", "no new one yet\n")
		looked("first", "no new one yet")
		write(name, "") // as create does
		looked("first", "no new one yet")
		write(name+".1", "late\n")
		looked("first", "no new one yet", "late")
		require.NoError(t, os.Rename(name, name+".2")) // and again, though the node was not told
		write(name, "")
		looked("first", "no new one yet", "late")
		write(name+".1", "last\n")
		write(name, "new\n")
		looked("first", "no new one yet", "late", "last", "new")
		write(name, "newer\n")
		require.NoError(t, os.Rename(name, name+".3"))
		write(name, "newest\n")
		looked("first", "no new one yet", "late", "last", "new", "newer", "newest")
		cancel()
		require.NoError(t, <-ended)
	})
}

// Lines are printed as JSON that means what it did, whatever is in them, and nothing
// in them is for a terminal to obey.
func TestPrintedLinesAreJSON(t *testing.T) {
	for _, tool := range []string{"plain é 漢", "a\x7fb", "\u009b2J", "\u202e", "\U000e0041\U000e0042", "\ufeff"} {
		line := `{"event":"change",` + "\t" + `"tool":"` + tool + `"}` + "\n"
		for _, command := range []string{"query", "tail"} {
			said, err := runAudit(command, auditLog(t, line))
			require.NoError(t, err)
			var got struct{ Tool string }
			require.NoError(t, json.Unmarshal([]byte(said), &got), "%s: %s", command, said)
			require.Equal(t, tool, got.Tool)
			require.Equal(t, terminal.Printable(said), strings.TrimSuffix(said, "\n")+`\n`)
		}
	}
}

// What is found is printed as it is asked for, and ends the command alike.
func TestVerifyPrintsAsAsked(t *testing.T) {
	name := auditLog(t, "no line\n")
	said, err := runAudit("verify", name, "--output", "text")
	require.Error(t, err)
	require.Contains(t, said, "1 problems")
	said, err = runAudit("verify", name, "--output", "json")
	require.Error(t, err)
	var report struct{ Problems []struct{ File, What string } }
	require.NoError(t, json.Unmarshal([]byte(said), &report), said)
	require.Len(t, report.Problems, 1)
	require.Equal(t, name, report.Problems[0].File)
	said, err = runAudit("verify", auditLog(t, ""), "--output", "json")
	require.NoError(t, err)
	require.Contains(t, said, `"problems": []`)
}
