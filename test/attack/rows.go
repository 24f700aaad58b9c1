package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed rows/*.yaml
var files embed.FS

// Attacks is how many there are.
const Attacks = 110

// A Row is an attack.
type Row struct {
	N       int      `yaml:"n"`
	Attack  string   `yaml:"attack"`
	Outcome string   `yaml:"outcome"` // that is required
	Tests   []string `yaml:"tests"`   // each "./package Test" or "./package Test/part"
}

// A Test is one that tries attacks.
type Test struct{ Package, Name string }

func (t Test) String() string { return t.Package + " " + t.Name }

// Top is the function of the test.
func (t Test) Top() string {
	top, _, _ := strings.Cut(t.Name, "/")
	return top
}

// Parsed returns the tests of a row.
func (r Row) Parsed() (all []Test, err error) {
	for _, text := range r.Tests {
		pkg, name, ok := strings.Cut(text, " ")
		if !ok || !strings.HasPrefix(pkg, "./") || !strings.HasPrefix(name, "Test") {
			err = errors.Join(err, fmt.Errorf("attack %d: %q is no test: write ./package TestName", r.N, text))
			continue
		}
		all = append(all, Test{pkg, name})
	}
	return all, err
}

// Rows reads all attacks, in order.
func Rows() (all []Row, err error) {
	err = fs.WalkDir(files, "rows", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		var rows []Row
		dec := yaml.NewDecoder(bytes.NewReader(content))
		dec.KnownFields(true)
		if err := dec.Decode(&rows); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, rows...)
		return nil
	})
	slices.SortFunc(all, func(a, b Row) int { return a.N - b.N })
	return all, err
}
