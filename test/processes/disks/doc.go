// Package disks gives each node of a cluster a disk of its own, and breaks it: an
// ext4 in a file, whose power can be cut, which can be full, and whose accesses
// can fail, be slow or lie. Bits of what is on it can be turned.
//
// It needs root, a kernel with loop devices, mkfs.ext4 and strace; Usable says
// what of that is missing.
package disks
