// Package authoring is for those who write policies: it lints one, compares two,
// and reads tables of tests with the stubs in them.
//
// It judges no call; package engine runs the tests.
package authoring
