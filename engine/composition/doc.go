// Package composition is how the documents of a tree go together: which of them
// count for a call, by its path and by strict mode, how their rules merge, and who
// wins where they disagree (policy engine spec 7.2, 11 to 13 and 18.1).
//
// It makes no decision of what wins; package engine does.
package composition
