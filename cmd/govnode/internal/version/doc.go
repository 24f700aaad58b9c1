// Package version says what this program was built from.
package version
