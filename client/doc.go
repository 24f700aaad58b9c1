// Package client is the Go client of govnode: it begins and ends governed
// calls, and takes and gives back slots of shared pools.
//
//	c, err := client.New(client.Config{Addresses: []string{"127.0.0.1:7070"}})
//	defer c.Close()
//
//	slot, err := c.Acquire(ctx, "gpu")
//	defer slot.Release()
//
//	session, err := c.CreateSession(ctx, client.Session{Agent: "writer", Policy: "default"})
//	call, err := session.Begin(ctx, client.Call{Tool: "search"})
//	defer call.End(ctx, client.Succeeded)
//
// Where the nodes have TLS, Config.TLS says by whom they are known:
//
//	secure, err := client.LoadTLS("ca.crt", "client-laptop.crt", "client-laptop.key")
//	c, err := client.New(client.Config{Addresses: []string{"a.example.com:7070"}, TLS: secure})
//
// FromEnvironment takes addresses, token and certificates from the environment:
//
//	cfg, err := client.FromEnvironment() // GOVNODE_ADDRESSES, GOVNODE_TOKEN, GOVNODE_TLS_CA and so on
//	c, err := client.New(cfg)
//
// # Answers and their absence
//
// A refusal is a *Refused: it says what refused and why, and when to come
// back. An error that is no refusal is the absence of an answer. A *Unknown
// says that the request may have taken effect: whoever chose its id may send
// it again with that id, and gets the answer of the first one. An
// *Unavailable says that nothing was changed. An *Error is what the service
// objects to in the request itself.
//
// # Sending again
//
// The client finds the leader of the cluster and follows it. What gets no
// answer is sent again, to another node, with the same id, after a random
// pause, until the caller's context is done or the operation's own deadline
// is reached (Config.Timeout on top of the time it waits for a slot). So is what
// a node refuses as OVERLOADED, when it said, or after a second: such a node is
// near its memory limit and looked at nothing. So is what a quota of so much a
// second leaves no room for, when the node said. What is sent again is bounded by
// Config.Budget, so that a cluster in trouble is not buried by its clients.
//
// # Leases
//
// Everything a Client holds is renewed by one goroutine, all in one request,
// at a third of its TTL. A lease runs, for its holder, from the sending of the
// request that granted or renewed it, on the monotonic clock, so that the
// holder never believes in it longer than the service does. It is Held, or
// AtRisk when a renewal has failed and the lease has not run out yet, or Lost.
// A loss is told by Lost and Config.OnLost; nothing is cancelled unless
// CancelOnLost asks for it.
//
// Where two holders at once must be impossible, hand the token of the slot to
// whatever the slot protects, and let that refuse a token lower than the
// highest it has seen: a holder that is paused cannot notice that its lease
// ran out before it has gone on working.
//
// # The messages of the API
//
// Kind, Outcome and the other values have names in this package, so that calls,
// slots and refusals need no other one. Whole answers, for whoever wants all that
// the service said, are messages of proto/govnode/v1 with a getter for each field:
// what Begun, Ended and Read return, and the methods for operators. PutPolicyTree,
// Evaluate and Scan also take one.
//
// # What it is not
//
// The package decides nothing: policy and limits are judged by the service
// alone, and without an answer there is no admission. It does not poll, and
// it keeps no cache.
package client
