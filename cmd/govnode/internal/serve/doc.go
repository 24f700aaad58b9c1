// Package serve is one node: it puts together what keeps the order, the API on top
// of it, the ports, the audit log and the end in good order. It has no rule about
// sessions, slots or policies.
package serve
