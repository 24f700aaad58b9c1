// Package value holds arguments and contexts as immutable, ordered JSON trees
// that compare and print the way Python's json and dict objects do.
//
// The policies that the engine evaluates were written against a reference in
// Python: 1 == 1.0 == True there, "ab" < "b" goes by code point, and a pattern
// is searched in the repr of a dict. A tree of this package gives the same
// answers, keeps the order of keys and the text of numbers as they were
// received, and lets a rule look up, compare and search without allocating.
//
// It is not a general JSON library: it reads one strict document, it has no
// mapping to Go structs, and a tree cannot be changed, only copied with one key
// replaced ([Value.With]). A Value is safe for concurrent use.
//
// Text is always valid UTF-8. Which characters Repr prints raw follows the
// Unicode version of the Go release (unicode.Version); a CPython with another
// version differs in the characters that one of them does not know yet.
package value
