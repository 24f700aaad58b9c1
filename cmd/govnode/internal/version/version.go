package version

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/session"
)

// A Build is what this program was built from, and what it writes and reads.
type Build struct {
	Version  string `json:"version"`  // of the module, or devel with the commit
	Commit   string `json:"commit"`   // empty if the build does not know it
	Go       string `json:"go"`       // version
	Platform string `json:"platform"` // system/processor
	Command  int    `json:"commandVersion"`
	Entry    int    `json:"logFormat"`
	Snapshot int    `json:"snapshotFormat"`
}

// Of returns the build of this program.
func Of() Build {
	b := Build{
		Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Command: session.Version, Entry: session.EntryFormat, Snapshot: session.SnapshotFormat,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	var modified bool
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if b.Commit != "" && modified {
		b.Commit += "-dirty"
	}
	switch {
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		b.Version = info.Main.Version
	case b.Commit != "":
		b.Version = "devel-" + b.Commit
	}
	return b
}

// Metric is the build as a metric that is always 1.
func Metric() prometheus.Collector {
	b := Of()
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "govnode_build_info", Help: "1, with the version, the commit and the version of Go that this node was built from.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "goversion": b.Go},
	})
	g.Set(1)
	return g
}

// Print writes the build in words.
func (b Build) Print(w io.Writer) error {
	t := terminal.NewTable(w, "govnode", b.Version)
	t.Row("commit", b.Commit)
	t.Row("go", b.Go+" "+b.Platform)
	t.Row("formats", fmt.Sprintf("commands %d, log %d, snapshot %d", b.Command, b.Entry, b.Snapshot))
	return t.Flush()
}

// Command is `govnode version`.
func Command() *cobra.Command {
	return terminal.Local(&cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Long: `Prints the version of this program, the commit and the Go that it was built with, and
the versions of what it writes: the newest kind of command, the format of the entries
of the log, and that of snapshots.`,
		Args: terminal.Arguments(0, 0),
	}, []string{"text", "json"}, func(cmd *cobra.Command, output string, _ []string) error {
		if output == "json" {
			return terminal.WriteJSON(cmd.OutOrStdout(), Of())
		}
		return Of().Print(cmd.OutOrStdout())
	})
}
