// Package words is how results of the state machine read in answers: the outcomes
// of its codes, the words of its refusals, and its counters, grants and places as
// messages of the API.
//
// A repeat reads as the first answer did, so everything is made from what is
// remembered. Errors are not made here; they are package fault.
package words
