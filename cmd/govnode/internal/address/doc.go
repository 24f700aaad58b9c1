// Package address is about the addresses that nodes listen on and are reached at:
// what may be said about one before it is opened, and how it is opened.
package address
