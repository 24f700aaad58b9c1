//go:build noopa

package opa

import "example.com/govnode/engine"

// Load refuses every tree: this program was built without the library.
func Load(files []engine.File) (engine.Backend, []engine.Problem) {
	return nil, []engine.Problem{{
		Path:    files[0].Path,
		Message: "this program was built without OPA (build tag noopa), so that the tree cannot be evaluated here; use the full build",
	}}
}
