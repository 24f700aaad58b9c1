// Package edictum is `govnode edictum`: what there is for users of Edictum beside the
// interface that its SDKs speak, which is internal/edictum.
package edictum
