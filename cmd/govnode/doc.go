// Command govnode runs nodes of the service and talks to them.
//
// It is the only place that reads flags, environment variables and files,
// opens listeners, starts processes and answers signals. Here stand the tree of
// the commands and the tests that run the program as a whole; each group of
// commands has a room in internal. What a node is made of is put together in
// internal/serve; every setting stands once, in the table in internal/config.
// It is not the place of any rule about sessions, slots or policies: those are
// in the packages that it puts together, and every subcommand that works on a
// running node is a plain client of its API.
//
// Exit codes: 0 yes, 1 refused or failed, 2 wrong use of the command line or of
// what it names.
package main
