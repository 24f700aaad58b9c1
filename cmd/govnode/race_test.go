//go:build race

package main

// raceDetector says that the nodes of tests hold several times the memory of
// their own.
const raceDetector = true
