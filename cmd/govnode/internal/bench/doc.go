// Package bench is the command that measures: its flags, the systems to compare and
// the processes to start for them. What a load, a figure or a report is stands in
// the package bench of the module.
package bench
