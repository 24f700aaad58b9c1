// Package version says what this program was built from: to a person, to a script and to
// whoever collects metrics.
package version
