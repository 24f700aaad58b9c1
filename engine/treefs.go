package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"example.com/govnode/engine/source"
)

// ReadFiles reads the files of a policy directory for NewTree. Only regular
// files are opened: a symbolic link could lead outside the directory, and a
// pipe or device could be read for ever. Names that begin with a dot are left
// out; those of them that hold a policy come back in hidden, so that somebody
// can be told. The error is a [*LoadError] or that of fsys.
func ReadFiles(fsys fs.FS) (files []source.File, hidden []string, err error) {
	total := 0
	err = fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case isHidden(name):
			if entry.IsDir() && (err != nil || entry.Name() == ".git") {
				return fs.SkipDir // it is no policy, whatever it holds
			}
			if entry.Type().IsRegular() && path.Ext(name) != "" {
				if content, err := readBounded(fsys, name, source.MaxTreeBytes); err == nil && isPolicy(source.File{Path: name, Content: content}) {
					hidden = append(hidden, name)
				}
			}
			return nil
		case err != nil:
			return err
		case entry.IsDir():
			return nil
		case !entry.Type().IsRegular():
			return source.TreeProblem(name, "the file is a symbolic link, pipe or device; a policy tree holds regular files alone")
		}
		content, err := readBounded(fsys, name, source.MaxTreeBytes-total)
		if err != nil {
			return err
		}
		total += len(content)
		files = append(files, source.File{Path: name, Content: content})
		return nil
	})
	return files, hidden, err
}

// isHidden reports whether a name on the way to a file begins with a dot.
func isHidden(name string) bool {
	return name != "." && (strings.HasPrefix(name, ".") || strings.Contains(name, "/."))
}

func readBounded(fsys fs.FS, name string, room int) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The entry may have been replaced since it was listed.
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, source.TreeProblem(name, "the file is not a regular file"))
	}
	content, err := io.ReadAll(io.LimitReader(f, int64(room)+1))
	if err != nil {
		return nil, err
	}
	if len(content) > room {
		return nil, source.TreeProblem("", fmt.Sprintf("the tree is larger than %d bytes; split it or remove what is not policy", source.MaxTreeBytes))
	}
	return content, nil
}

// SplitTests takes the tables of tests out of the files of a policy directory.
// They lie beside the policies and are no part of the tree. A table is what is
// named *_test.yaml or *_test.yml, holds a list of cases, and nothing of a
// policy. All else stays in the tree, which is refused for what it cannot hold:
// a policy must not vanish because of its name or of a stray field.
func SplitTests(files []source.File) (tree, tests []source.File) {
	for _, f := range files {
		base := path.Base(f.Path)
		if (strings.HasSuffix(base, "_test.yaml") || strings.HasSuffix(base, "_test.yml")) && isTable(f) {
			tests = append(tests, f)
			continue
		}
		tree = append(tree, f)
	}
	return tree, tests
}

func isTable(f source.File) bool {
	n, probs := source.Parse(f.Path, f.Content)
	if probs != nil {
		return false
	}
	cases, ok := n.Get("cases")
	isDocument, isGovernance := classify(n)
	return ok && cases.Kind == source.List && !isDocument && !isGovernance
}

// isPolicy reports whether a file would be a policy where it is not left out.
func isPolicy(f source.File) bool {
	switch path.Ext(f.Path) {
	case ".cedar", ".rego":
		return true
	case ".yaml", ".yml", ".json":
		n, probs := source.Parse(f.Path, f.Content)
		if probs != nil {
			return false
		}
		isDocument, isGovernance := classify(n)
		return isDocument || isGovernance
	}
	return false
}
