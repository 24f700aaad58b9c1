package complete

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Register makes a command and all below it complete their flags and arguments.
func Register(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil && !cmd.HasSubCommands() {
		cmd.ValidArgsFunction = arguments(cmd)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if err := cmd.RegisterFlagCompletionFunc(f.Name, flag(f)); err != nil {
			panic(err) // the flag is there, and has no completion yet
		}
	})
	for _, c := range cmd.Commands() {
		Register(c)
	}
}

// choices is how a help tells what a flag may be: text|json.
var choices = regexp.MustCompile(`[a-z0-9_-]+(\|[a-z0-9_-]+)+`)

// flag completes the value of a flag.
func flag(f *pflag.Flag) cobra.CompletionFunc {
	name, usage := pflag.UnquoteUsage(f)
	if words := choices.FindString(usage); words != "" {
		return func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			before := ""
			if i := strings.LastIndexByte(typed, ','); i >= 0 && f.Value.Type() == "stringSlice" {
				before = typed[:i+1] // a list goes on behind its last comma
			}
			return beginning(before, strings.Split(words, "|"), typed), cobra.ShellCompDirectiveNoFileComp
		}
	}
	if l := byFlag[f.Name]; l != nil {
		return live(l)
	}
	switch name {
	case "file", "program":
		return files
	case "folder":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	return cobra.NoFileCompletions
}

// arguments completes what stands behind a command, by the words in its usage.
func arguments(cmd *cobra.Command) cobra.CompletionFunc {
	var each []cobra.CompletionFunc
	for _, word := range strings.Fields(cmd.Use)[1:] {
		switch word = strings.Trim(word, "[]"); {
		case strings.HasPrefix(word, "-"):
		case byWord[word] != nil:
			each = append(each, live(byWord[word]))
		case strings.HasSuffix(word, "..."):
			return files
		case strings.Contains(word, "FILE") || strings.Contains(word, "DIR") || word == "POLICY" || strings.HasSuffix(word, ".json"):
			each = append(each, files)
		default:
			each = append(each, cobra.NoFileCompletions)
		}
	}
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return each[len(args)](cmd, args, typed)
	}
}

func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// beginning are the words, with what stands before them, that begin with what was
// typed.
func beginning(before string, words []string, typed string) (fit []string) {
	for _, w := range words {
		if strings.HasPrefix(before+w, typed) {
			fit = append(fit, before+w)
		}
	}
	return fit
}
