package workflow

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// A condition tells whether a gate of a stage is met.
type condition func(s *State, stage string) bool

var (
	callForm = regexp.MustCompile(`^([a-z_]+)\((.*)\)$`)
	argForm  = regexp.MustCompile(`^\s*"((?:[^"\\]|\\.)*)"\s*(,|$)`)
)

// conditionOf reads a condition, such as file_read("TASK.md"), and the tool at whose
// results it looks.
func conditionOf(text string, searches *pattern.Searches) (met condition, tool string, err error) {
	form := callForm.FindStringSubmatch(text)
	if form == nil {
		return nil, "", fmt.Errorf("%q is no condition; write one such as stage_complete(\"NAME\")", text)
	}
	args, err := argumentsOf(form[2])
	if err != nil {
		return nil, "", fmt.Errorf("%q: %w", text, err)
	}
	if form[1] == "approval" && len(args) == 0 {
		return func(s *State, stage string) bool { return s.Approvals[stage] == approved }, "", nil
	}
	want := map[string]int{
		"stage_complete": 1, "file_read": 1, "approval": 1, "command_matches": 1, "command_not_matches": 1, "mcp_result_matches": 3,
	}[form[1]]
	switch {
	case form[1] == "exec":
		return nil, "", errors.New("exec runs a command, which a node does not; let the agent run it, and use command_matches")
	case want == 0:
		return nil, "", fmt.Errorf("%s is not known; use stage_complete, file_read, approval, command_matches, command_not_matches or mcp_result_matches", form[1])
	case len(args) != want:
		return nil, "", fmt.Errorf("%s takes %d texts in quotes, got %d", form[1], want, len(args))
	}
	switch arg := args[0]; form[1] {
	case "stage_complete":
		return func(s *State, _ string) bool { return slices.Contains(s.Completed, arg) }, "", nil
	case "file_read":
		return func(s *State, _ string) bool { return slices.Contains(s.Reads, arg) }, "", nil
	case "approval":
		return func(s *State, _ string) bool { return s.Approvals[arg] == approved }, "", nil
	case "mcp_result_matches":
		return func(s *State, _ string) bool { return slices.ContainsFunc(s.Results[arg], field(args[1], args[2])) }, arg, nil
	}
	search, err := searches.Compile(args[0])
	if err != nil {
		return nil, "", fmt.Errorf("invalid expression %q: %w", args[0], err)
	}
	not := form[1] == "command_not_matches"
	return func(s *State, stage string) bool { return slices.ContainsFunc(s.Calls[stage], search.Match) != not }, "", nil
}

// field tells of a result whether a field of it reads so.
func field(name, text string) func(value.Value) bool {
	return func(result value.Value) bool {
		v, ok := result.Get(name)
		if s, isText := v.AsString(); isText {
			return s == text
		}
		return ok && v.Repr() == text
	}
}

// argumentsOf reads texts in quotes with commas between them.
func argumentsOf(text string) (args []string, err error) {
	rest := text
	for strings.TrimSpace(rest) != "" {
		m := argForm.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf("its arguments must be texts in double quotes, got %s", text)
		}
		arg, err := unquoted(m[1])
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
		if rest = rest[len(m[0]):]; m[2] == "," && strings.TrimSpace(rest) == "" {
			return nil, errors.New("there is a comma too many")
		}
	}
	return args, nil
}

// unquoted reads escapes as Python does: one that is not known stands for itself.
func unquoted(text string) (string, error) {
	var b strings.Builder
	for text != "" {
		c, tail := text[0], text[1:]
		if c != '\\' {
			b.WriteByte(c)
			text = tail
			continue
		}
		switch e := tail[0]; e { // what is in quotes does not end with a backslash
		case '\\', '"', '\'':
			b.WriteByte(e)
			text = tail[1:]
		case 'x', 'u', 'U':
			r, _, rest, err := strconv.UnquoteChar(text, '"')
			if err != nil {
				return "", fmt.Errorf(`\%c must stand before the number of a character`, e)
			}
			b.WriteRune(r)
			text = rest
		case 'a', 'b', 'f', 'n', 'r', 't', 'v', '0', '1', '2', '3', '4', '5', '6', '7':
			return "", fmt.Errorf(`\%c is a control character there; to mean it in an expression write \\%c`, e, e)
		default:
			b.WriteString(text[:2])
			text = tail[1:]
		}
	}
	if out := b.String(); !control(out) {
		return out, nil
	}
	return "", errors.New("there must be no control characters in it")
}

// control reports whether a text has control characters.
func control(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r < 0x20 || r == 0x7f })
}
