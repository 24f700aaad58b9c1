// Package quota is what is refused because a namespace has as much as it may.
//
// Quotas stand in the record of who may do what; what is used is counted by the store,
// or by this node for what is a node's own, and stands in no record. So a quota may be
// passed by what is under way: it protects the others, and promises no number. What
// ends something or gives it back is never refused.
package quota
