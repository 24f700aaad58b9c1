// Package chaos holds the built program, as real processes on a network that
// breaks, to what it promises: clients in processes of their own write down what
// they saw, faults are drawn by a seed, and package check judges all of it
// together with the log of the nodes.
//
// It has tests alone, which run where GOVNODE_L2 asks for it (`make prove-l2`).
// The soak (GOVNODE_SOAK, `make soak`) is the same for hours, with what package
// power does to disks, and judged in windows without a log, as that is cut off.
// The clients and what reads the log are those of package sim.
package chaos
