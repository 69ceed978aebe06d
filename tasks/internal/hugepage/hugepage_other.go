//go:build !linux

package hugepage

func allowed() bool { return false }

func collapse(uintptr) error { return nil }

func unsupported(error) bool { return true }
