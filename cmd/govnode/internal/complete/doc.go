// Package complete tells shells how a command line may go on. What a flag may be
// and what an argument names it reads from the help of the command, so that the
// two cannot differ; names of what there is now it asks a node for. No command
// knows of it.
package complete
