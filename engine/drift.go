package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"example.com/govnode/engine/difflib"
	"example.com/govnode/engine/value"
)

// A DriftResult compares one output with the baseline of a session (adapter
// contract 3.12).
type DriftResult struct {
	Score        float64 // 0 is identical, 1 is completely different
	Exceeded     bool    // Score > Threshold
	Threshold    float64
	BaselineHash string // SHA-256, hexadecimal
	CurrentHash  string
	// Bounded says that the texts were too long, or too costly, to compare to
	// the end; the score is then never too low.
	Bounded bool
}

// MaxDriftRunes is the longest text that is compared rune by rune. A session
// need not keep a baseline beyond it, only its hash.
const MaxDriftRunes = difflib.MaxRunes

// OutputText is the text of an output that drift is computed over: a string as
// it is, anything else in Python's notation.
func OutputText(output value.Value) string { return output.Str() }

// Drift compares current with baseline. The order matters: the measure is not
// symmetric.
func Drift(baseline, current string, threshold float64) DriftResult {
	r := DriftResult{Threshold: threshold, BaselineHash: hashText(baseline), CurrentHash: hashText(current)}
	if r.BaselineHash != r.CurrentHash {
		ratio, exact := difflib.Measure(baseline, current)
		r.Score, r.Bounded = 1-ratio, !exact
	}
	r.Exceeded = r.Score > threshold
	return r
}

// Reason is the text of a drift event.
func (r DriftResult) Reason() string {
	return fmt.Sprintf("Drift score %.2f exceeds threshold %.2f", r.Score, r.Threshold)
}

func hashText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
