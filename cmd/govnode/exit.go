package main

import (
	"errors"
	"fmt"
	"strings"
)

// exitWith makes an error end the program with 1, unless it says otherwise.
func exitWith(err error) error {
	var coded *exitError
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return &exitError{exitNo, err}
}

// The exit codes of every command; docs/operations.md has the table.
const (
	exitYes   = 0 // yes: done, allowed, valid, the same
	exitNo    = 1 // no: refused, denied, failed, or not reached
	exitUsage = 2 // the question cannot be put: the command line or what it names is wrong
)

// exitError ends the program with a code. Its error may be nil where the
// command has already said everything.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is an error in how the program was called or set up.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// unusable is an error in what a command was given to work on: a file that is
// not there, or that cannot be read as what it has to be.
func unusable(err error) error { return &exitError{exitUsage, err} }

// oneLine keeps an error on one line, so that logs and scripts can rely on it.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = printable(strings.TrimSpace(lines[i]))
	}
	return strings.Join(lines, "; ")
}
