package sandbox

import (
	"slices"
	"strings"
)

// A SideEffect says what a call may change.
type SideEffect uint8

// The side effects. Irreversible is what nothing is known of.
const (
	Irreversible SideEffect = iota
	Write
	Read
	Pure
)

// String is the side effect as rulesets write it.
func (e SideEffect) String() string {
	return [...]string{"irreversible", "write", "read", "pure"}[e]
}

// operators make of a command more than one, or write.
var operators = []string{"\n", "\r", "<", ">", "$", "|", ";", "&", "`", "#{"}

// readCommands only read, with the exceptions below.
var readCommands = []string{
	"ls", "cat", "head", "tail", "wc", "find", "grep", "rg", "git status", "git log", "git diff", "git show", "git branch",
	"git remote", "git tag", "echo", "pwd", "whoami", "date", "which", "file", "stat", "du", "df", "tree", "less", "more",
}

// writes are the options with which a command that reads does more.
var writes = map[string][]string{
	"find": {"-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls"},
	"tree": {"-o"}, "date": {"-s", "--set"}, "less": {"-o", "-O", "--log-file", "--LOG-FILE"}, "more": {"-o", "-O"}, "rg": {"--pre"},
	"git log": {"--output"}, "git diff": {"--output", "--ext-diff"}, "git show": {"--output", "--ext-diff"}, "file": {"-C", "--compile"},
}

// lists are the options with which a command that writes only lists.
var lists = map[string][]string{
	"git branch": {"-l", "--list", "-a", "-r", "-v", "-vv"}, "git tag": {"-l", "--list", "-n"}, "git remote": {"-v"},
}

// Classify tells what a command of a shell may change. It is Read only where that is
// sure.
func Classify(command string) SideEffect {
	trimmed := strings.TrimSpace(command)
	if trimmed == "" {
		return Read
	}
	for _, op := range operators {
		if strings.Contains(command, op) {
			return Irreversible
		}
	}
	for _, c := range readCommands {
		rest, ok := strings.CutPrefix(trimmed, c)
		if !ok || rest != "" && rest[0] != ' ' {
			continue
		}
		return classifyOptions(c, words(rest))
	}
	return Irreversible
}

func classifyOptions(command string, options []string) SideEffect {
	if only, ok := lists[command]; ok {
		for _, o := range options {
			if !slices.Contains(only, o) {
				return Irreversible
			}
		}
		return Read
	}
	for _, o := range options {
		if (command == "less" || command == "more") && strings.HasPrefix(o, "+") {
			return Irreversible
		}
		for _, w := range writes[command] {
			if o == w || strings.HasPrefix(o, w+"=") || len(w) == 2 && w[0] == '-' && strings.HasPrefix(o, w) && command != "find" ||
				strings.HasPrefix(w, "--") && len(o) > 4 && strings.HasPrefix(w, strings.SplitN(o, "=", 2)[0]) {
				return Irreversible
			}
		}
	}
	return Read
}
