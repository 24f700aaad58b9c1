// Package terminal is what all commands share towards the person, or the script,
// that calls them: exit codes, the shape of the command line, tables and JSON.
// It knows nothing of settings or of nodes.
package terminal
