// Package ids is what a session and a client remember of the ids that they have
// finished, so that nothing is carried out twice: see [Set]. It knows neither
// records nor commands; what a code, a rule and a value of an id mean is for
// package session to say.
package ids
