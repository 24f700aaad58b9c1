// Package operate is the commands with which an operator looks at a running cluster
// and changes it. Each is a plain client of the API.
package operate
