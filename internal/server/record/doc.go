// Package record is what a node remembers of its decisions, in memory: a journal
// with bounds, from which a decision is explained and events are followed, on this
// node and on all.
//
// It is not the audit log, which is written and never read here, and it decides
// nothing.
package record
