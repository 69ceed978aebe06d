// Package procgroup ends the processes that a command has started together with it. It owns nothing
// and calls only the operating system. Without process groups, only the command itself is ended.
package procgroup
