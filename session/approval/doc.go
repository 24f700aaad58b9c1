// Package approval has what an approval is in itself: who voted, what that came
// to, and how it moves as time passes. It knows no record, no command and no
// state; package session does the rest.
package approval
