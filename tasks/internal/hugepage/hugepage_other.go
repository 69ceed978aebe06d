//go:build !linux

package hugepage

func allowed() bool { return false }

func collapse(uintptr) error { return nil }

func kindOf(error) (full, passing bool) { return false, false }
