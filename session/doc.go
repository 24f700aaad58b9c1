// Package session is the state machine of govnode.
//
// [State.ApplyAll] is the only way state changes, and it is a function: equal
// states given equal commands at equal times become equal states and return
// equal results. Nothing here reads a clock, draws a random number, takes a
// lock, starts a goroutine or performs I/O. Packages storage and cluster decide
// in which order commands arrive; this package alone decides what they mean.
//
// # Words
//
// A [Command] asks for a change. [State] holds [Record] values under [Key]
// names. A [Result] is the answer to a command; a refusal is a result, never an
// error. Time is log time: a duration since the origin of the log, stamped on
// each entry by whoever orders commands, and never the time of day.
//
// # Records
//
// A record is immutable at the boundary of an entry (one call of ApplyAll). The
// first command of an entry that writes a record copies it, later commands of
// the entry write into that copy. Readers, snapshots and watches hold records
// between entries, and those never change; "changed" means that the pointer
// differs. A command decides first and writes last, so it cannot stop half-way.
// Nothing keeps a command that was applied: see [Decoder].
//
// Expiry is a function of record and time: [Record.At] settles one record alone,
// without any other. So the deadline of a call stands in its session and in
// each of its pools, and every command that writes one writes both.
//
// # Rooms
//
// Package ids has what is remembered of ids that were finished, package approval what
// votes come to and when, package budget what
// charges come to in a tree, and package wire how messages are written: none of
// them knows a record or a command.
//
// # Adding a command
//
//  1. its message and its number in proto/govnode/log/v1/log.proto
//  2. a struct with Touches in command.go, and Version raised to its kind
//  3. what it may say, in validate.go
//  4. its case in State.apply and its function
//  5. its encoding in codec_command.go, an example in validCommands of the
//     tests, and the golden files written anew
//  6. which id it carries, in IDOf, or that it is idempotent, in Repeatable (parts.go)
//  7. a script in testdata, and its place in sessiontest.History
//  8. what it promises, in test/model, and how it is made there
//
// Never renumber, and never change what an old command means: a new meaning is
// a new command. A node that meets a command it does not know stops.
package session
