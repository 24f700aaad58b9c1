// Command attack tries what people do to a service that decides for others: 110 attacks,
// each with the outcome that is required. rows says what they are, and which tests try
// them; a test may be anywhere in the module. Those that need running nodes with TLS,
// tokens and chains on are in vectors.
//
// It is no part of `go test ./...`, which sees to it that each attack has a test and that
// the tests exist. `make attack` runs it, prints the table, and writes it to
// bin/attack/report.md. It fails where an attack has its way, or could not be tried: a
// skipped test is a failure as root, and said to be skipped otherwise.
package main
