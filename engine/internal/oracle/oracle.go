// Package oracle gives tests of the engine's leaf packages cases that CPython
// has answered. Only tests import it.
package oracle

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
)

// folder is where the vectors lie, seen from a package directly below engine.
const folder = "../testdata/oracle/"

// Cases returns the kept cases of a kind. With GOVNODE_ORACLE=1 it returns
// 10,000 new ones from python3 instead and logs the call that makes them again.
//
// texts returns the texts of a case in which the Unicode version matters; a case
// with characters that this Go release does not know is left out, and the test
// fails if those are more than a tenth.
func Cases[T any](t *testing.T, kind string, texts func(T) string) []T {
	t.Helper()
	var cases []T
	unknown := 0
	lines := bufio.NewScanner(bytes.NewReader(answers(t, kind)))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var c T
		require.NoError(t, json.Unmarshal(lines.Bytes(), &c))
		if !assigned(texts(c)) {
			unknown++
			continue
		}
		cases = append(cases, c)
	}
	require.NoError(t, lines.Err())
	require.Greater(t, len(cases), 10*unknown, "%d cases have characters that Unicode %s does not know", unknown, unicode.Version)
	return cases
}

func answers(t *testing.T, kind string) []byte {
	if os.Getenv("GOVNODE_ORACLE") != "1" {
		text, err := os.ReadFile(folder + kind + ".jsonl")
		require.NoError(t, err)
		return text
	}
	seed := strconv.FormatInt(time.Now().Unix(), 10)
	t.Logf("python3 engine/testdata/oracle/gen.py %s 10000 %s", kind, seed)
	text, err := exec.Command("python3", folder+"gen.py", kind, "10000", seed).Output()
	require.NoError(t, err)
	return text
}

// assigned reports whether this Unicode version knows all of s. Noncharacters
// count as known, since no version will ever assign them.
func assigned(s string) bool {
	for _, r := range s {
		nonCharacter := r&0xFFFE == 0xFFFE || 0xFDD0 <= r && r <= 0xFDEF
		if !nonCharacter && !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.C) {
			return false
		}
	}
	return true
}
