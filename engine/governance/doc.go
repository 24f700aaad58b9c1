// Package governance is the GovernancePolicy: the numbers, lists and patterns that
// adapters hold every call against (policy engine spec 8, adapter contract 4). It
// reads one from a file, compares two, and says what in one contradicts itself.
//
// It checks no call. Package engine does, with what stands here.
package governance
