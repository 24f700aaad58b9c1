// Package opa lets a policy tree decide with Rego (policy engine spec 14.4),
// evaluated in the process by the library of Open Policy Agent.
//
// The answer is data.agentos.allow. Modules may be written in Rego v1 or v0.
// They have no way to the network or to the process, and there are no bundles,
// no decision logs and no remote server.
//
// The library makes a program 18 MB larger, 15 MB stripped. The build tag noopa
// leaves it out; trees with Rego are then refused.
package opa
