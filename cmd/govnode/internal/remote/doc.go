// Package remote is the API of running nodes as commands use it: whom to ask, when
// another node is worth asking, and what to say when there is no answer. What is
// asked stands with the command.
package remote
