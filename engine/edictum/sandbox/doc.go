// Package sandbox looks for paths, commands and hosts in the arguments of a call, and
// tells whether they are inside of what a sandbox rule allows (Edictum, ruleset type
// sandbox). It also tells a command that only reads from one that may do more.
//
// It looks at texts alone, without a file system and without a shell: links are for
// the tool to follow or not. Where a shell, a browser or a tool could read a text in
// more than one way, each of them has to be inside.
package sandbox
