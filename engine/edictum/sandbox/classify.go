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
	"tree": {"-o", "-R"}, "date": {"-s", "--set"}, "less": {"-o", "-O", "--log-file", "--LOG-FILE"}, "more": {"-o", "-O"}, "rg": {"--pre", "--hostname-bin"},
	"git log": {"--output", "--ext-diff"}, "git diff": {"--output", "--ext-diff"}, "git show": {"--output", "--ext-diff"}, "file": {"-C", "--compile"},
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
		var options []string
		for _, w := range split(rest) {
			if all, ok := w.expanded(); !ok || len(all) != 1 {
				return Irreversible
			}
			options = append(options, w.text)
		}
		return classifyOptions(c, options)
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
		if slices.ContainsFunc(writes[command], func(w string) bool { return meant(w, upTo(o, takeText[command]), command == "find") }) {
			return Irreversible
		}
	}
	return Read
}

// meant reports whether a word of a command may mean an option: itself, one of several
// letters behind one hyphen, or the beginning of a long one. Single says that the command
// takes options of one hyphen as they stand.
func meant(option, word string, single bool) bool {
	name, _, _ := strings.Cut(word, "=")
	switch {
	case name == option:
		return true
	case strings.HasPrefix(option, "--"):
		return len(name) > 2 && strings.HasPrefix(option, name)
	case single || len(option) != 2 || len(word) < 2 || word[0] != '-' || word[1] == '-':
		return false
	}
	return strings.Contains(word, option[1:])
}

// takeText are the letters of options whose argument may follow at once, as in -Is.
var takeText = map[string]string{"date": "dfrI"}
