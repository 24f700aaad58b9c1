//go:build unix

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// documents are those that are run, by their path in the repository.
func documents(t *testing.T) (names []string) {
	t.Helper()
	for _, pattern := range []string{"README.md", "docs/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		for _, file := range found {
			name, err := filepath.Rel(root, file)
			require.NoError(t, err)
			names = append(names, name)
		}
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(text)
}

// Everything that a document prints works as printed.
func TestDocuments(t *testing.T) {
	for _, name := range documents(t) {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			t.Parallel()
			list, _, err := blocks(read(t, name))
			require.NoError(t, err, name)
			need(t, list)
			require.NoError(t, runDocument(list), name)
		})
	}
}

// need skips a document that uses what is not there.
func need(t *testing.T, list []block) {
	t.Helper()
	for _, b := range list {
		if b.lang != "sh" && b.lang != "redis" || b.has("norun") {
			continue
		}
		for _, tool := range []string{"bash", "curl", "python3", "redis-server"} {
			if !strings.Contains(b.text, tool) {
				continue
			}
			if _, err := exec.LookPath(tool); err != nil {
				if os.Getenv("GOVNODE_REQUIRE_DOCS") != "" {
					require.NoError(t, err)
				}
				t.Skip("there is no " + tool)
			}
		}
	}
}

// What is not run says why, is rare, and is checked by a tool of its own where
// there is one.
func TestNotRun(t *testing.T) {
	count := 0
	for _, name := range documents(t) {
		list, _, err := blocks(read(t, name))
		require.NoError(t, err, name)
		for _, b := range list {
			if !b.has("norun") {
				continue
			}
			count++
			t.Logf("%s:%d is not run: %s", name, b.line, b.words["reason"])
			require.NoError(t, checkNotRun(t, b), "%s:%d", name, b.line)
		}
	}
	require.LessOrEqual(t, count, 10)
}

// checkNotRun gives a block to the tool that knows its language.
func checkNotRun(t *testing.T, b block) error {
	file := filepath.Join(t.TempDir(), "govnode.service")
	switch {
	case b.lang == "sh":
		// Its words are right, whoever runs it.
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(b.text)
		if err := cmd.Run(); err != nil {
			return err
		}
		return checkTargets(t, b.text)
	case b.words["reason"] == "systemd":
		tool, err := exec.LookPath("systemd-analyze")
		if err != nil {
			t.Logf("line %d: there is no systemd-analyze", b.line)
			return nil
		}
		built, err := program()
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(b.text, "/usr/local/bin/govnode", built)
		require.Contains(t, text, built)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		out, err := exec.Command(tool, "verify", "--man=no", file).CombinedOutput()
		require.NotContains(t, string(out), "govnode.service:", "systemd warns")
		if err != nil && strings.Contains(string(out), "govnode.service") {
			return err
		}
	}
	return nil
}
