// Package doctor looks at the machine on which a server of Lapse is to run: its files, disk, clock,
// memory and certificates. It owns what is good enough, and what to do where it is not.
//
// It calls package checkup, and the operating system. It changes nothing but a file of its own,
// which it deletes. What it cannot find out is a finding too, and no error.
package doctor
