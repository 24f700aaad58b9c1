// Package arguments writes the arguments of calls as requests carry them: as a
// JSON text that is the same whenever they are.
//
// What it is not: it reads nothing, and does not judge what it cannot write: that
// goes as a Struct, or is for the service to object to.
package arguments
