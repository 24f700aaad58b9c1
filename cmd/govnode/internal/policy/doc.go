// Package policy is the commands about policies: those that judge files and need no
// node, and those that put them on a cluster and look at them there. How a policy
// is judged stands in the package engine.
package policy
