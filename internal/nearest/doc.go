// Package nearest finds the word that somebody may have meant. Commands, flags,
// settings and fields of policies all ask it, so that all answer alike.
package nearest
