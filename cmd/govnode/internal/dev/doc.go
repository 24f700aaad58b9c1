// Package dev runs a whole cluster on this machine, each node a process of its own:
// for a person, and for the commands that need one for the time being (cluster.go).
package dev
