// Package process is about processes of this program: signals that end one, those
// that it starts and that must not outlive it, and what these print. It is not
// the place of what they do.
package process
