// Package approvals is how people are asked and decide: approvals are asked for
// without a call, read, waited for, decided and cancelled, and standing approvals
// are put and taken back.
//
// What a decision does to a call is the state machine's; that a call asks is an
// operation of package server.
package approvals
