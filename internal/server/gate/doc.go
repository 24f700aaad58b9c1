// Package gate stands in front of the handlers and knows none of them: a directory
// answers what is no call of a method, and what connect refuses without a reason;
// a guard refuses new work while the process is near its memory limit.
//
// Which requests a guard is asked about is decided where the methods are known.
package gate
