// Package limits is how pools, rates and budgets are put, deleted, read and listed.
//
// It is not where they hold anybody: slots are taken, rates are spent and budgets are
// charged by operations, which are of package server.
package limits
