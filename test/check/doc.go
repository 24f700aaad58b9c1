// Package check judges what clients saw of a cluster, and what its log says.
// Each check is a function of a history and knows nothing of how the product
// works: what it compares with is arithmetic.
//
// The log is a witness: it says in which order changes took effect. A history
// for which it accounts, in an order that agrees with the clock of the clients,
// is linearizable. [Linearizable] does without the witness, and searches.
package check
