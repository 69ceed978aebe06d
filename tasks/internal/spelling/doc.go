// Package spelling finds the name that was probably meant.
package spelling
