// Package skew moves the clocks of one process, as it runs, and of no other one
// on the machine. A Go program asks the kernel's shared object for the time (the
// vDSO), of which each process has a copy that can be written to: so its function
// is led to one that adds what it is told.
//
// What sleeps in the kernel, sleeps for as long as the machine says.
package skew
