// Package storagetest is the suite that every store must pass.
//
// [Run] asks of a store what package storage promises: that commands are
// atomic, keep their order and have their effect once, that a read of the
// latest state sees what was acknowledged, that who waits is told, that a bad
// command harms nobody else. [Histories] gives random histories of commands to
// several stores, at the same log times, and wants the answers and the records
// of the bare state machine from each.
//
// What commands mean is tested in package session; this suite only uses enough
// of it to look at the order.
package storagetest
