// Package pattern finds the blocked patterns of a policy in the arguments of a
// call: substrings, regular expressions and globs, all without regard to case,
// as the policy engine spec (section 9) and its reference in Python have them.
//
// Expressions are written in Python's syntax and run by RE2, in time linear in
// the text. What the two read differently is rewritten (\uXXXX, \Z, named
// groups, \d \w \s as Unicode has them, the $ before a last newline); what RE2
// cannot run is refused with the reason, unless the pattern asks for the
// backtracking engine, whose limits count as a hit. Two differences to Python
// remain: \b and \B go by ASCII letters, and nothing that must match the
// newline can follow a $.
//
// A [Set] of a thousand patterns is searched in one pass: an automaton looks
// for literals that every match must hold, and only the patterns whose
// literals occur are run. That changes the time and never the result.
//
// The package is no general regular expression library, it reports no places
// of matches, and it knows nothing of rules and decisions.
package pattern
