// Package sdk runs the published Go SDK of Edictum, unchanged, against three nodes of
// bin/govnode, and its pipeline beside the engine of this project.
//
//	make test-edictum-go EDICTUM_GO=folder
package sdk
