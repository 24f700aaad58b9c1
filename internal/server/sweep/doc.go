// Package sweep closes the sessions of those who were killed. That a KILL stands,
// and that nothing is admitted against it, is decided in the order; that what was
// open before is closed is work, which a node does for all.
package sweep
