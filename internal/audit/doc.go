// Package audit is the form of the audit log: what is said of a command, how the lines
// of a node are chained, and how both are verified.
//
// There are two kinds of chains. The lines of one node stand in one: each has a number
// and the hash of itself and of all before it, so that a line that was changed, removed,
// added or moved is found in the file alone. And each change of the state has a link in
// the chain of the record that it was about (session.Chain), whose head is part of the
// replicated state: so lines that are missing at the end are found as well, and a file
// that was made anew as a whole.
//
// It is not what writes the file, and it does not read the state.
package audit
