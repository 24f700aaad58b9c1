package source

import (
	"fmt"
	"strings"
)

// A Problem is one thing that is wrong, or odd, in one file of a tree. It
// names the place exactly, so that an editor or a person can go there.
type Problem struct {
	Path    string // file in the tree; empty when it concerns the tree itself
	Line    int    // from 1; 0 when the file as a whole is meant
	Field   string // dotted path of the field, such as rules[2].condition.operator
	Message string // what is wrong and what to do
}

// String prints path:line: field: message, leaving out what is empty.
func (p Problem) String() string {
	var b strings.Builder
	if p.Path != "" {
		b.WriteString(p.Path)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	// Several messages begin with the field already, because their text is
	// fixed by the specification; it is not said twice.
	if p.Field != "" && !strings.HasPrefix(p.Message, p.Field) {
		b.WriteString(p.Field)
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// A LoadError lists why a tree was refused. A tree with one bad file is
// refused whole (policy engine spec 16.1): half a policy is not a policy.
type LoadError struct {
	Problems []Problem // never empty
}

// Error prints the first ten problems, one per line.
func (e *LoadError) Error() string {
	const shown = 10
	lines := make([]string, 0, shown+1)
	for i, p := range e.Problems {
		if i == shown {
			lines = append(lines, fmt.Sprintf("and %d more", len(e.Problems)-shown))
			break
		}
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Problems gathers what is wrong in one file.
type Problems struct {
	Path string
	List []Problem
}

// Add says what is wrong with a field and what to do.
func (ps *Problems) Add(line int, field, format string, args ...any) {
	ps.List = append(ps.List, Problem{Path: ps.Path, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// Count reads an integer from least, which is 0 or 1, to most.
func (ps *Problems) Count(f *Node, field string, least, most int64) int64 {
	v, ok := f.Integer()
	switch {
	case f.beyondInt64(), v > most:
		ps.Add(f.Line, field, "%s must be at most %d, got %s", field, most, f.Repr())
	case (!ok || v < least) && least == 0:
		ps.Add(f.Line, field, "%s must be a non-negative integer, got %s", field, f.Repr())
	case !ok || v < least:
		ps.Add(f.Line, field, "%s must be a positive integer, got %s", field, f.Repr())
	}
	return v
}

// Threshold reads a number from 0 to 1.
func (ps *Problems) Threshold(f *Node, field string) float64 {
	v, ok := f.Number()
	if !ok || !(v >= 0 && v <= 1) { // so that NaN fails too
		ps.Add(f.Line, field, "%s must be a float between 0.0 and 1.0, got %s", field, f.Repr())
	}
	return v
}
