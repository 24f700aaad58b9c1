package terminal

import (
	"errors"
	"fmt"
	"strings"
)

// With which code the program ends.

// ExitWith makes an error end the program with 1, unless it says otherwise.
func ExitWith(err error) error {
	var coded *ExitError
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return &ExitError{ExitNo, err}
}

// The exit codes of every command; docs/operations.md has the table.
const (
	ExitYes   = 0 // yes: done, allowed, valid, the same
	ExitNo    = 1 // no: refused, denied, failed, or not reached
	ExitUsage = 2 // the question cannot be put: the command line or what it names is wrong
)

// ExitError ends the program with a code. Its error may be nil where the
// command has already said everything.
type ExitError struct {
	Code int
	Err  error
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap lets errors.As look behind the code.
func (e *ExitError) Unwrap() error { return e.Err }

// Usagef is an error in how the program was called or set up.
func Usagef(format string, args ...any) error {
	return &ExitError{ExitUsage, fmt.Errorf(format, args...)}
}

// Unusable is an error in what a command was given to work on: a file that is
// not there, or that cannot be read as what it has to be.
func Unusable(err error) error { return &ExitError{ExitUsage, err} }

// OneLine keeps an error on one line, so that logs and scripts can rely on it.
func OneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = Printable(strings.TrimSpace(lines[i]))
	}
	return strings.Join(lines, "; ")
}
