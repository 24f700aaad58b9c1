// Package workflow judges calls by a Workflow of Edictum: stages in a row, each with the
// tools that it takes, checks of commands, and gates before it and behind it.
//
// What was done so far is a [State], which whoever asks keeps: a call is judged on one,
// and what comes of it is another. There is no clock, no lock and no I/O here. A State
// is written as the SDKs of Edictum write theirs.
//
// Rules for a single call are package edictum; who keeps States is the server.
package workflow
