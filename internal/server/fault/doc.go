// Package fault is why a request has no answer: typed errors with their reasons,
// and the one place where they become errors of the caller's protocol.
//
// What an error means stands in its fields and is decided where it is made;
// nobody reads its text. The package knows how results of the state machine, the
// errors of a store and the messages that connect cannot read are said. It is not
// the words of refusals, which are answers.
package fault
