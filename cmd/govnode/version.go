package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is the version of the module that the program was built from, or the
// commit where it was built from a work tree.
func version() string {
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

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  arguments(0, 0),
	}
	checkOutput := outputFlag(cmd, &output, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkOutput(); err != nil {
			return err
		}
		platform := runtime.GOOS + "/" + runtime.GOARCH
		if output == "json" {
			_, commit := buildVersion()
			return writeJSON(cmd.OutOrStdout(), map[string]string{
				"version": version(), "commit": commit, "go": runtime.Version(), "platform": platform,
			})
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "govnode %s %s %s\n", version(), runtime.Version(), platform)
		return err
	}
	return cmd
}
