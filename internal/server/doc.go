// Package server is what a node offers to its clients: the handlers of the nine
// services of API version 1, and with them the use cases of govnode.
//
// It is the one place that knows all nouns at once (sessions, calls, slots,
// policies, counters, members), and the one place where API messages, the time
// of day and random ids exist. It decides nothing that spends a limit: it
// checks a request, judges its policy, puts a command in order through a
// [storage.Store], and says in words what came of it.
//
// A refusal is a value and travels as an outcome; an error is the absence of an
// answer, and every one of them is a [fault.Error]. To learn what BeginCall does, read
// calls.go from top to bottom.
//
// Behind this door are rooms, and each imports only rooms before it: fault, input,
// words, order, gate, members, health, waiting, sweep, limits, values, policies,
// record.
//
// The package is not a transport: it makes an [http.Handler] and opens no port.
// It is not a store and not a policy engine, and it does not know which order
// stands behind its Store.
package server
