// Package source is what policies are written in: a content-addressed tree of
// files, and the nodes that a YAML or JSON file holds, each with its line.
//
// What a file cannot be read for, and what its readers find wrong in it, are
// [Problem]s that name the place. What a parser costs is bounded before it runs.
//
// It is not a schema: it knows no field and no rule. Package document and package
// governance read those from nodes.
package source
