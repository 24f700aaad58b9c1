package pattern

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// Pattern is an entry of blocked_patterns.
type Pattern struct {
	Text string
	Type Type // "" means Substring
	// Backtracking asks for the engine that can run lookarounds and
	// backreferences, within limits; allowed for Regex only.
	Backtracking bool
}

// Type is how the text of a pattern is read (policy engine spec 9.1).
type Type string

// The three pattern types. A pattern without a type is a Substring.
const (
	Substring Type = "substring"
	Regex     Type = "regex"
	Glob      Type = "glob"
)

// Caps on what one pattern may be. They bound what a match can cost, since RE2
// takes time in proportion to instructions times text.
const (
	MaxText         = 512  // bytes of a pattern's text
	MaxInstructions = 2000 // instructions of the program that RE2 makes of it
)

// Compiled is a pattern ready to be searched for. It is safe for concurrent use.
type Compiled struct {
	pattern Pattern
	folded  []byte         // Substring: the text, folded
	search  *regexp.Regexp // Regex and Glob: found anywhere; a glob up to the end of the text
	whole   *regexp.Regexp // Glob: the whole text
	slow    *backtracking  // Regex with Backtracking, instead of search
	needs   *condition     // what the literals of a text must fulfil for a match
	class   classCheck     // the same in terms of single characters
	cost    int            // ranges of its classes, see MaxRanges

	instructions int // of the programs of search and whole, see MaxOfSet
}

// Compile prepares a pattern. It refuses an empty one, which would match
// everything, one beyond the caps, and a regex that is wrong or that the engine
// asked for cannot run, with the reason.
func Compile(p Pattern) (*Compiled, error) {
	if p.Type == "" {
		p.Type = Substring
	}
	c := &Compiled{pattern: p}
	switch {
	case p.Text == "":
		return nil, errors.New("an empty pattern would match everything; remove it or give it a text")
	case len(p.Text) > MaxText:
		return nil, fmt.Errorf("the pattern is %d bytes long, %d are allowed", len(p.Text), MaxText)
	case !utf8.ValidString(p.Text):
		return nil, errors.New("the pattern is not valid UTF-8")
	case p.Backtracking && p.Type != Regex:
		return nil, fmt.Errorf("engine: backtracking is for patterns of type regex, not %s", p.Type)
	}
	var err error
	switch p.Type {
	case Substring:
		c.folded = appendFolded(nil, p.Text)
		c.needs = anyLiteral([]string{loose(p.Text)})
	case Glob:
		err = c.compileGlob()
	case Regex:
		if p.Backtracking {
			c.slow, err = compileBacktracking(p.Text)
		} else {
			c.search, err = c.compileRE2(p.Text)
		}
	default:
		err = unknownType(p.Type)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// unknownType is the error for a type that is none, in the reference's words.
type unknownType Type

func (t unknownType) Error() string { return "Unknown pattern type: '" + string(t) + "'" }

// compileGlob prepares both readings of a glob: on the repr of the arguments it
// is anchored at the end only, as the reference has it, on a single value it
// must match the whole.
func (c *Compiled) compileGlob() (err error) {
	expr := `(?s:` + parseGlob(c.pattern.Text).expression() + `)\Z`
	if c.whole, err = c.compileRE2(`\A` + expr); err != nil {
		return err
	}
	c.search, err = c.compileRE2(expr)
	return err
}

// compileRE2 compiles an expression in Python's syntax, without regard to case,
// and notes what its matches have in common.
func (c *Compiled) compileRE2(expr string) (*regexp.Regexp, error) {
	rewritten, ranges, err := rewrite(expr, dialectRE2, true)
	if err != nil {
		return nil, err
	}
	parsed, re, instructions, err := compileRE2(rewritten)
	if err != nil {
		return nil, err
	}
	c.cost += ranges
	c.instructions += instructions
	c.needs = conditionOf(parsed)
	c.class = classCheckOf(parsed)
	return re, nil
}

// compileRE2 compiles an expression of RE2 whose program is small enough, and counts its
// instructions.
func compileRE2(expr string) (*syntax.Regexp, *regexp.Regexp, int, error) {
	parsed, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return nil, nil, 0, plainError(err)
	}
	parsed = parsed.Simplify()
	prog, err := syntax.Compile(parsed)
	if err != nil {
		return nil, nil, 0, plainError(err)
	}
	if len(prog.Inst) > MaxInstructions {
		return nil, nil, 0, fmt.Errorf("the pattern makes a program of %d instructions, %d are allowed; use smaller repeat counts", len(prog.Inst), MaxInstructions)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, nil, 0, plainError(err)
	}
	return parsed, re, len(prog.Inst), nil
}

// plainError drops what Go puts before the reason, and says what to do about a
// repeat count, which is the only limit of RE2 that good patterns run into.
func plainError(err error) error {
	var at *syntax.Error
	if !errors.As(err, &at) {
		return err
	}
	text := at.Code.String() + ": `" + at.Expr + "`"
	switch at.Code {
	case syntax.ErrInvalidRepeatSize:
		return needsBacktracking{fmt.Sprintf("repeat count %s (RE2 allows at most 1000)", at.Expr)}
	case syntax.ErrLarge, syntax.ErrNestingDepth:
		text = at.Code.String()
	}
	return errors.New(text)
}

// Match reports whether the pattern is found in text, without regard to case. A
// glob is anchored at the end of the text only. A backtracking pattern that
// runs into its limits counts as found.
func (c *Compiled) Match(text string) bool {
	hit, _ := c.run(&piece{text: text, form: formRepr})
	return hit
}

// Pattern returns what c was compiled from, its type filled in.
func (c *Compiled) Pattern() Pattern { return c.pattern }

// run searches one piece of text. limited says that the backtracking engine
// gave up, so that the hit is an assumption.
func (c *Compiled) run(p *piece) (hit, limited bool) {
	switch {
	case c.pattern.Type == Substring:
		return bytes.Contains(p.foldedText(), c.folded), false
	case c.slow != nil:
		return c.slow.match(p.text)
	case c.pattern.Type == Regex || p.form == formRepr:
		return c.search.MatchString(p.text), false
	case p.form == formJSON:
		return false, false // a glob has no meaning on JSON text
	default:
		return c.whole.MatchString(p.text), false
	}
}

// Describe says what a reviewer should know about a pattern: whether only the
// backtracking engine can run it, and whether it is a glob that does not begin
// with a star and yet is found in the middle of the arguments, because globs
// are anchored at their end only. An invalid pattern is neither.
func Describe(p Pattern) (backtracking, unanchoredGlob bool) {
	if p.Type == Glob {
		return false, !strings.HasPrefix(p.Text, "*") && p.Text != ""
	}
	if p.Type != Regex {
		return false, false
	}
	p.Backtracking = false
	if _, err := Compile(p); err == nil {
		return false, false
	}
	p.Backtracking = true
	_, err := Compile(p)
	return err == nil, false
}
