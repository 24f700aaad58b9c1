// The published Go SDK of Edictum against three nodes. It is a module of its own: nothing
// of govnode is built with the SDK.
module example.com/govnode/test/edictum/go

go 1.26

require (
	example.com/govnode v0.0.0
	github.com/edictum-ai/edictum-go v0.5.0
	github.com/stretchr/testify v1.12.1
)

replace example.com/govnode => ../../..
