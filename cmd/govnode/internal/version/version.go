package version

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// String is the version of the module that the program was built from, or the
// commit where it was built from a work tree.
func String() string {
	v, commit := buildVersion()
	if v == "" || v == "(devel)" {
		if commit != "" {
			return "devel-" + commit
		}
		return "devel"
	}
	return v
}

func buildVersion() (version, commit string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	var modified bool
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if commit != "" && modified {
		commit += "-dirty"
	}
	return info.Main.Version, commit
}

// Command is `govnode version`.
func Command() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  terminal.Arguments(0, 0),
	}
	checkOutput := terminal.OutputFlag(cmd, &output, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(); err != nil {
			return err
		}
		platform := runtime.GOOS + "/" + runtime.GOARCH
		if output == "json" {
			_, commit := buildVersion()
			return terminal.WriteJSON(cmd.OutOrStdout(), map[string]string{
				"version": String(), "commit": commit, "go": runtime.Version(), "platform": platform,
			})
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "govnode %s %s %s\n", String(), runtime.Version(), platform)
		return err
	}
	return cmd
}
