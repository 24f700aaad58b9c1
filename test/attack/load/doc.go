// Package load attacks a node by load: connections that do nothing, senders that are
// slow, floods of frames, of resets and of wrong tokens, and one tenant that makes as
// many sessions as it can. Meanwhile another tenant makes calls at a modest rate, and
// is measured.
//
// Attackers are processes of their own, and send at a rate whatever they are
// answered. So the same load goes to a node, and to a sink on the same machine that
// reads it and does nothing: how much slower the other tenant is with the first than
// with the second is the node's doing, and not that of a machine that is busy.
//
// `make attack-load` measures that, in rounds of both in turn. Without it the tests
// hold what depends on no clock: every call of the other tenant is answered, memory
// is bounded, and nothing is left when the attackers have gone.
package load
