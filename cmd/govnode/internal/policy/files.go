package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine"
	"example.com/govnode/engine/cedar"
	"example.com/govnode/engine/opa"
)

// How policies are read from files and compiled.

// Engine says how policies are compiled, on nodes and by the commands
// that judge files.
func Engine(log *slog.Logger) []engine.Option {
	return []engine.Option{engine.WithLogger(log), engine.WithCedar(cedar.Load), engine.WithRego(opa.Load)}
}

// policySource is a policy as it lies on disk: one file, or a folder with all
// that belongs to it.
type policySource struct {
	path   string
	folder bool
	files  []engine.File
	tests  []engine.File // tables of tests beside the policy, no part of it
	hidden []string      // policies that are left out, since their names begin with a dot
}

// budget is what a command gives the backends of a policy for one call. Nobody
// waits behind it as callers do behind a node, and a machine that is busy must not
// turn an answer into a denial.
const budget = 5 * time.Second

// stdinName stands for standard input where a file is named.
const stdinName = "-"

// readPolicy reads a policy from disk, or one file of it from standard input.
// Every file of a folder counts: one that is left out because of a misspelt name
// would be a rule that nobody applies. The error ends a command that needs the
// policy, with the code for what cannot be used.
func readPolicy(name string, stdin io.Reader) (*policySource, error) {
	s, err := readSource(name, stdin)
	if err != nil {
		return nil, terminal.Unusable(err)
	}
	return s, nil
}

func readSource(name string, stdin io.Reader) (*policySource, error) {
	if name == stdinName {
		content, err := readContent(stdin, "standard input")
		if err != nil {
			return nil, err
		}
		return &policySource{path: name, files: []engine.File{{Path: "policy.yaml", Content: content}}}, nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is neither a file nor a folder", name) // a pipe could be waited for, for ever
	}
	if !info.IsDir() {
		content, err := readPolicyFile(name)
		if err != nil {
			return nil, err
		}
		return &policySource{path: name, files: []engine.File{{Path: filepath.Base(name), Content: content}}}, nil
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	files, hidden, err := engine.ReadFiles(folder{root})
	s := &policySource{path: name, folder: true, hidden: hidden}
	if err != nil {
		return nil, s.locate(err)
	}
	if s.files, s.tests = engine.SplitTests(files); len(s.files) == 0 {
		return nil, fmt.Errorf("%s: holds no policy file", name)
	}
	return s, nil
}

// A folder is one that policies are read from: nothing outside of it is opened, and what
// has become a pipe since it was looked at is not waited for.
type folder struct{ root *os.Root }

// Open implements fs.FS.
func (f folder) Open(name string) (fs.File, error) {
	return f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// readPolicyFile reads a file up to what a policy may hold.
func readPolicyFile(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s: is no regular file", name))
	}
	return readContent(file, name)
}

func readContent(r io.Reader, name string) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, engine.MaxTreeBytes+1))
	if err == nil && len(content) > engine.MaxTreeBytes {
		err = fmt.Errorf("%s: is larger than the %d bytes that a policy may have", name, engine.MaxTreeBytes)
	}
	return content, err
}

// compile builds the policy; the error holds a *engine.LoadError with paths as
// they are on disk, and ends a command as that of readPolicy does.
func (s *policySource) compile() (*engine.Policy, error) {
	tree, err := engine.NewTree(s.files)
	if err != nil {
		return nil, terminal.Unusable(s.locate(err))
	}
	p, err := engine.Compile(tree, append(Engine(slog.New(slog.DiscardHandler)), engine.WithBudget(budget))...)
	if err != nil {
		return nil, terminal.Unusable(s.locate(err))
	}
	return p, nil
}

// compiled reads the policy at a path and builds it.
func compiled(cmd *cobra.Command, path string) (*policySource, *engine.Policy, error) {
	s, err := readPolicy(path, cmd.InOrStdin())
	if err != nil {
		return nil, nil, err
	}
	p, err := s.compile()
	return s, p, err
}

// leftOut warns of policies that are not read because of their names.
func (s *policySource) leftOut() []engine.Problem {
	var list []engine.Problem
	for _, path := range s.hidden {
		list = append(list, engine.Problem{Path: path, Message: "left out, with all that begins with a dot; give it another name, or put the tree by the API"})
	}
	return list
}

// locate turns the paths of problems, which are those of the tree, into paths
// that an editor finds.
func (s *policySource) locate(err error) error {
	var load *engine.LoadError
	if !errors.As(err, &load) {
		return err
	}
	return &engine.LoadError{Problems: s.located(load.Problems)}
}

func (s *policySource) located(problems []engine.Problem) []engine.Problem {
	var list []engine.Problem
	for _, p := range problems {
		p.Path = s.file(p.Path)
		list = append(list, p)
	}
	return list
}

func (s *policySource) file(path string) string {
	if !s.folder || path == "" {
		return s.path
	}
	return filepath.Join(s.path, filepath.FromSlash(path))
}

// problemsOf are what is wrong with a policy; nil if err is about something
// else, such as a file that is not there.
func problemsOf(err error) []engine.Problem {
	var load *engine.LoadError
	if errors.As(err, &load) {
		return load.Problems
	}
	return nil
}
