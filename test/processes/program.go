package processes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Program returns the path of the program: what GOVNODE_BIN names, or else one
// that is built into dir. It must be called from a folder of the module.
func Program(dir string) (string, error) {
	if path := os.Getenv("GOVNODE_BIN"); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "govnode")
	out, err := exec.Command("go", "build", "-tags", "hashicorpmetrics", "-o", path, "example.com/govnode/cmd/govnode").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("processes: building the program: %w\n%s", err, out)
	}
	return path, nil
}
