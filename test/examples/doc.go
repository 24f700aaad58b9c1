// Package examples runs the worked examples of the policy engine spec, section
// 21, through the API of three nodes that form a cluster in this process: put
// on one node, evaluated on another, explained and followed on a third.
//
// It is a test of the whole path and not of the engine's details, which package
// engine tests by section.
package examples
