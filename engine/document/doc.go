// Package document is the PolicyDocument: rules with their conditions, defaults
// and settings, as one file of a tree states them (policy engine spec 3 to 6).
//
// It reads and checks; it tests no rule. Package matching does that, and package
// composition knows which documents go together.
package document
