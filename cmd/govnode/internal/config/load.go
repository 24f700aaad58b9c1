package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/internal/nearest"
)

// Where settings come from: defaults, a file, the environment and flags.

const fromDefault = "default"

// Bind gives a command the flags of its scope and returns where their values
// will stand once load has run.
func Bind(cmd *cobra.Command, on Scope) *Config {
	c := &Config{sources: map[string]string{}}
	c.register(cmd.Flags(), on)
	return c
}

// register makes the flags of a scope. A flag that is not given keeps the
// default of the table.
func (c *Config) register(fs *pflag.FlagSet, on Scope) {
	fs.SortFlags = false
	for _, s := range settings {
		if s.on&on == 0 {
			continue
		}
		usage := s.meaning
		if s.may != "" {
			usage += ", " + s.may
		}
		usage += " [" + s.env() + "]"
		switch p := s.in(c).(type) {
		case *string:
			fs.StringVarP(p, s.flag, s.short, s.def, usage)
		case *bool:
			fs.BoolVarP(p, s.flag, s.short, mustParse(strconv.ParseBool, s), usage)
		case *int:
			fs.IntVarP(p, s.flag, s.short, mustParse(strconv.Atoi, s), usage)
		case *time.Duration:
			fs.DurationVarP(p, s.flag, s.short, mustParse(time.ParseDuration, s), usage)
		case *[]string:
			fs.StringSliceVarP(p, s.flag, s.short, nil, usage)
		}
		c.sources[s.flag] = fromDefault
	}
}

// mustParse reads a default of the table, which a test reads as well.
func mustParse[T any](parse func(string) (T, error), s setting) T {
	v, err := parse(s.def)
	if err != nil {
		panic(fmt.Sprintf("default of --%s: %v", s.flag, err))
	}
	return v
}

// Load completes what the command line has set, from the environment and then
// from the file. A setting that the command does not have is not looked at in
// the environment; in the file it must at least be one that some command has,
// so that one file serves all commands and a misspelt key is still found.
func (c *Config) Load(fs *pflag.FlagSet, env func(string) (string, bool)) error {
	for _, s := range settings {
		f := fs.Lookup(s.flag)
		if f == nil {
			continue
		}
		if f.Changed {
			c.sources[s.flag] = "flag --" + s.flag
		} else if text, ok := env(s.env()); ok {
			if err := c.set(f, text, "environment "+s.env()); err != nil {
				return err
			}
		}
	}
	return c.loadFile(fs)
}

// Given reports whether a setting was given, by whatever means.
func (c *Config) Given(flag string) bool { return c.sources[flag] != fromDefault }

// Note says where a value came from that was written into a field.
func (c *Config) Note(flag, source string) { c.sources[flag] = source }

// set writes one value and notes where it came from.
func (c *Config) set(f *pflag.Flag, text, source string) error {
	if err := f.Value.Set(text); err != nil {
		return terminal.Usagef("%s: %q (%s) is not %s", f.Name, text, source, typeWords[f.Value.Type()])
	}
	c.sources[f.Name] = source
	return nil
}

var typeWords = map[string]string{
	"bool":        "true or false",
	"int":         "a whole number",
	"duration":    "a duration such as 500ms or 10s",
	"string":      "a text",
	"stringSlice": "a list separated by commas",
}

// maxConfigFile bounds what is read as settings: the whole table takes a few
// kilobytes.
const maxConfigFile = 64 << 10

// loadFile applies the file named by --config to the settings that neither the
// command line nor the environment has set.
func (c *Config) loadFile(fs *pflag.FlagSet) error {
	if c.File == "" {
		return nil
	}
	source := c.sources["config"]
	info, err := os.Stat(c.File)
	if err == nil && info.Size() > maxConfigFile {
		return terminal.Usagef("config: %s (%s) is larger than %d bytes: it is not a file of settings", c.File, source, maxConfigFile)
	}
	content, err := os.ReadFile(c.File)
	if err != nil {
		return terminal.Usagef("config (%s): %v", source, err)
	}
	lines, err := fileSettings(content)
	if err != nil {
		return terminal.Usagef("%s: %v", c.File, err)
	}
	for _, l := range lines {
		f := fs.Lookup(l.key)
		if f == nil || c.Given(l.key) {
			continue
		}
		if err := c.set(f, l.text, fmt.Sprintf("file %s:%d", c.File, l.line)); err != nil {
			return err
		}
	}
	return nil
}

// A fileSetting is one key of a file of settings.
type fileSetting struct {
	key, text string
	line      int
}

// fileSettings reads a file of settings as a flat mapping. Unknown keys, keys
// that stand twice, aliases and nested values are refused with their line.
func fileSettings(content []byte) ([]fileSetting, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, errors.New("must be a mapping of settings, one `name: value` a line")
	}
	var found []fileSetting
	seen := map[string]bool{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if !slices.Contains(settingNames(), key.Value) {
			return nil, fmt.Errorf("line %d: unknown setting %q%s: `govnode config explain` lists them", key.Line, key.Value, nearest.Hint(key.Value, "", settingNames()))
		}
		if seen[key.Value] {
			return nil, fmt.Errorf("line %d: %s stands twice: leave one", key.Line, key.Value)
		}
		seen[key.Value] = true
		text, err := settingText(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", value.Line, key.Value, err)
		}
		found = append(found, fileSetting{key.Value, text, key.Line})
	}
	return found, nil
}

// settingNames are the keys that a file may have. A file that names another file
// would make the order unclear.
func settingNames() (names []string) {
	for _, s := range settings {
		if s.flag != "config" {
			names = append(names, s.flag)
		}
	}
	return names
}

// settingText is a value as it would be typed after a flag.
func settingText(n *yaml.Node) (string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "", errors.New("has no value: give one, or leave the line out")
		}
		return n.Value, nil
	case yaml.SequenceNode:
		parts := make([]string, 0, len(n.Content))
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode {
				return "", errors.New("must be a list of plain values")
			}
			parts = append(parts, item.Value)
		}
		return strings.Join(parts, ","), nil
	}
	return "", errors.New("must be a plain value")
}

// Args are the flags that give another command of the scope the settings that
// this one has; its secrets are in SecretEnv.
func (c *Config) Args(on Scope) []string {
	var list []string
	for _, s := range settings {
		if _, ok := c.sources[s.flag]; ok && s.on&on != 0 && s.flag != "config" && !s.secret() {
			list = append(list, "--"+s.flag+"="+settingValue(s.in(c)))
		}
	}
	return list
}

// SecretEnv are the variables that belong to args.
func (c *Config) SecretEnv(on Scope) []string {
	var list []string
	for _, s := range settings {
		if value := settingValue(s.in(c)); s.secret() && s.on&on != 0 && value != "" {
			list = append(list, s.env()+"="+value)
		}
	}
	return list
}

// settingValue is the value behind a pointer of the table, as it would be
// typed.
func settingValue(p any) string {
	switch p := p.(type) {
	case *string:
		return *p
	case *bool:
		return strconv.FormatBool(*p)
	case *int:
		return strconv.Itoa(*p)
	case *time.Duration:
		return p.String()
	case *[]string:
		return strings.Join(*p, ",")
	}
	panic(fmt.Sprintf("a setting of type %T has no text", p))
}

// shown is the value of a setting as it may be printed: without a password.
func (c *Config) shown(s setting) string {
	value := settingValue(s.in(c))
	if !s.secret() || value == "" {
		return value
	}
	u, err := url.Parse(value)
	if s.flag != "redis" || err != nil || u.Host == "" { // a password in it would not be seen as one
		return "(not shown)"
	}
	return u.Redacted()
}

// WithoutSettings is an environment in which a node finds no settings but
// those that dev gives it.
func WithoutSettings(env []string) []string {
	var kept []string
	for _, e := range env {
		if !strings.HasPrefix(e, "GOVNODE_") {
			kept = append(kept, e)
		}
	}
	return kept
}
