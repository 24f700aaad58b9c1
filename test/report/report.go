// Package report is what each layer of the proof leaves behind for package
// prove: how much was done, what was broken meanwhile, and what broke. A test
// writes its Layer where the environment says so, and nothing otherwise.
package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// DirEnv names the folder that layers write their reports to.
const DirEnv = "GOVNODE_REPORT"

// A Layer is what one layer of the proof did and found.
type Layer struct {
	Name       string                   // for instance L1
	Seeds      []uint64                 // with which it can be run again
	Took       time.Duration            // of real time
	Cluster    time.Duration            `json:",omitempty"` // of time in the clusters, where that is another
	Operations int                      // of clients; commands in L0
	Unknown    int                      // of them, whose outcome the client was not told
	NotApplied int                      // of them, that failed for certain
	Faults     map[string]int           `json:",omitempty"` // by kind
	Figures    map[string]float64       `json:",omitempty"` // others that the layer is judged by, with the unit in the name
	P99        map[string]time.Duration `json:",omitempty"` // by invariant that has a bound in time
	Violations []string                 // each with the check that found it before a colon
	Replay     string                   `json:",omitempty"` // a command that runs what failed again
	Skipped    string                   `json:",omitempty"` // why it did not run
}

// Write leaves l behind as NAME.json in the folder that the environment names,
// or does nothing where it names none.
func Write(l Layer) error {
	dir := os.Getenv(DirEnv)
	if dir == "" {
		return nil
	}
	b, err := json.MarshalIndent(l, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, l.Name+".json"), append(b, '\n'), 0o644)
}
