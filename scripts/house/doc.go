// Package house keeps the shape of the code: sizes, interfaces, comments and locks; and ratchets,
// numbers that may only fall. It has tests only.
package house
