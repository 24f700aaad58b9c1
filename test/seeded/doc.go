// Package seeded proves the proof: it says of each bug of package internal/seeded
// which layer has to catch it and by which check, builds the layers with the bugs
// in them, and runs each layer with one bug at a time.
//
// A bug is caught where a check that is named for it has spoken. That something
// crashed, did not come up or took too long proves nothing: any change could
// have done that. Nor may one speak where there is no bug, which is looked at as well.
//
// What is built lies where GOVNODE_SEEDED_BIN says and is not built again there, so
// that it can be built beforehand, with the tags hashicorpmetrics and seeded: the
// tests of test/model and test/sim as model.test and sim.test, and the program as
// govnode.test.
package seeded
