// Package ids draws the ids of a client, newer than what the service has
// forgotten, and checks those that its user has chosen.
//
// What it is not: it remembers no id, and does not know what they are of.
package ids
