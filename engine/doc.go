// Package engine answers one question: what do the documents of a policy tree
// say about this call?
//
// A [Tree] is a content-addressed set of files. [Compile] turns it, once, into
// an immutable [Policy]; [Policy.Evaluate] judges an [Input] without locks and
// never returns an error: what cannot be judged is denied, and the [Decision]
// says so. The rules are those of two public specifications, the policy engine
// spec and the framework adapter contract; comments cite their sections.
//
// One evaluation runs, in this order:
//
//  1. the documents that apply (a folder chain or the flat list) and their
//     rules, in strict mode after what any of them denies; then the external
//     backends, then the default action;
//  2. the checks of the GovernancePolicy: human approval, allowed tools,
//     blocked patterns, confidence;
//  3. content hashes of tools;
//  4. guardrail providers, which may rewrite the arguments. What they wrote is
//     judged again by everything above.
//
// A deny from any of these is final. What the service itself counts (calls,
// attempts, tokens, slots, time) enters as [Facts]; a rule that looked at one
// leaves a [Premise], the range of values in which its truth stands, so that
// the one who spends the counter can tell whether the decision still holds.
//
// The package is not a store, a counter or a session: it holds nothing between
// two calls, reads no disk during an evaluation, and knows no node. External
// policy languages live in packages of their own and come in through
// [WithCedar] and [WithRego].
package engine
