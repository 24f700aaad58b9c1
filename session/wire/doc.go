// Package wire writes and reads messages of log.proto in the one form in which
// they are written, and puts seals on them: a checksum that whoever makes bytes
// puts behind them, and whoever reads them checks.
//
// Which messages there are, and which fields they have, is said by the types
// that are written: see [Coder].
package wire
