// Package spelling says whether a name was probably meant for another one.
package spelling
