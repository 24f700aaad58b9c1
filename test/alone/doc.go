// Package alone is what one client does alone with names that nobody else uses: since
// nothing but its own requests changes what stands under them, it knows what each answer
// has to say, in every field, without looking at the log. A script goes from step to step,
// each at any of the nodes, by plain requests or by the Go client, and ends early where nobody
// answers.
//
// It is for what the other clients of packages sim and chaos do not do because many of
// them at once would leave nothing to compare with: the whole life of each kind of thing,
// and limits that are reached by one client's own calls. How it stands under others is
// theirs to say. What befalls those who wait at a node that goes is looked at apart from the
// scripts, by Goes.
package alone
