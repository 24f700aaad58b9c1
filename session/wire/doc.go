// Package wire puts seals on what is stored and sent: a checksum that whoever
// makes bytes puts behind them, and whoever reads them checks. It knows nothing
// of what the bytes mean.
package wire
