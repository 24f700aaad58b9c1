// Package flows keeps how far sessions have come in the workflows of Edictum: one value
// of each session, under the name that the SDKs of Edictum give it, changed by
// compare-and-set, so that every node judges on what every other has done.
//
// What a workflow says is package workflow of the engine. Here is who reads and writes,
// and how people are asked about a stage: that is an approval of the service, which
// holds no slot and counts nothing while it is pending.
package flows
