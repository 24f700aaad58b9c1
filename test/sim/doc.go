// Package sim runs whole clusters in virtual time: real Raft, the nodes of
// package cluster, the handlers of package internal/server and the Go client,
// all of them within one bubble of testing/synctest. The network, the disks and
// the clocks are made here, and break when a seeded plan says so. Afterwards
// package check judges what the clients saw.
//
// A seed gives the plan and not each step: which goroutine goes first is the
// runtime's to say, and Raft draws its timeouts by itself.
//
// Guardrails that scripts of package alone name have a host of their own, which no fault
// cuts off: what they say is what is looked at.
//
// What is not here: sockets, TLS, files. A process that is paused is one that
// neither sends, receives nor writes; its timers go on.
//
// Time stands still there for good where somebody wants a lock whose holder waits for
// something. Tests of clusters run in inVirtualTime, which ends such a run and says who
// wants the lock: it is a request that waits longer than it wants to be answered.
package sim
