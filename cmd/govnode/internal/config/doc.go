// Package config is the settings: one table (config.go) from which flags,
// environment variables, the keys of the file, the help and `config explain` are
// made, and what may stand together. It opens nothing but the file of settings.
package config
