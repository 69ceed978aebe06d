// Package house keeps the shape of the code: sizes, interfaces, comments and locks. It has tests
// only.
package house
