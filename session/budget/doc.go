// Package budget is the arithmetic of budgets: how much of one is used, when its
// period ends, and what the charges of one call come to in a tree of them.
//
// It knows no names of records and no commands, and it does not find a parent:
// package session does.
package budget
