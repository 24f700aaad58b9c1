// Package model is layer L0 of the proof: package session under generated
// commands, against a model that was written apart from it.
//
// [Model] is the definition of what the state machine promises, in the plainest
// form: maps and slices, everything settled at once whenever time moves, nothing
// derived, nothing shared. It has the types of commands, results and records in
// common with package session, and no code. [Generator] makes entries of
// commands of every kind from a seed. [Check] applies entries to the model and
// to replicas that are kept, cut and fed in different ways, and compares results,
// records and digests; it finds the shortest entries that still fail.
//
// It is not fast, and it is not the place to look up how something is done.
// Where it differs from the state machine one of the two is wrong, and the
// documents say which.
package model
