package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// ReadFiles reads the files of a policy directory for NewTree. Only regular
// files are opened: a symbolic link could lead outside the directory, and a
// pipe or device could be read for ever. Names that begin with a dot are left
// out. The error is a [*LoadError] or that of fsys.
func ReadFiles(fsys fs.FS) ([]File, error) {
	var files []File
	total := 0
	err := fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name != "." && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return nil
		case !entry.Type().IsRegular():
			return treeProblem(name, "the file is a symbolic link, pipe or device; a policy tree holds regular files alone")
		}
		content, err := readBounded(fsys, name, MaxTreeBytes-total)
		if err != nil {
			return err
		}
		total += len(content)
		files = append(files, File{Path: name, Content: content})
		return nil
	})
	return files, err
}

func readBounded(fsys fs.FS, name string, room int) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The entry may have been replaced since it was listed.
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, treeProblem(name, "the file is not a regular file"))
	}
	content, err := io.ReadAll(io.LimitReader(f, int64(room)+1))
	if err != nil {
		return nil, err
	}
	if len(content) > room {
		return nil, treeProblem("", fmt.Sprintf("the tree is larger than %d bytes; split it or remove what is not policy", MaxTreeBytes))
	}
	return content, nil
}

// SplitTests takes the tables of tests, *_test.yaml and *_test.yml with a list
// of cases, out of the files of a policy directory. They lie beside the
// policies and are no part of the tree.
func SplitTests(files []File) (tree, tests []File) {
	for _, f := range files {
		base := path.Base(f.Path)
		if (strings.HasSuffix(base, "_test.yaml") || strings.HasSuffix(base, "_test.yml")) && hasCases(f) {
			tests = append(tests, f)
			continue
		}
		tree = append(tree, f)
	}
	return tree, tests
}

func hasCases(f File) bool {
	n, probs := parseText(f.Path, f.Content)
	if probs != nil {
		// What cannot be read is reported as what its name says it is.
		return true
	}
	_, ok := n.get("cases")
	return ok
}
