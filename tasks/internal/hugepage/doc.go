// Package hugepage has the kernel keep the memory of many records in huge pages.
//
// A node with millions of tasks has gigabytes of memory that is written once and read when its time
// has come. In pages of 4 KiB, the kernel has a million entries to look at, and whatever looks at
// all of them stops the node for as long. In pages of 2 MiB there are few.
//
// The owner of the memory hands in the pieces that it takes, and those that it gives up. A block of
// 2 MiB of which three quarters are in use is collapsed: the kernel copies it into a huge page
// (madvise with MADV_COLLAPSE, Linux 6.1, see madvise(2)). That happens once, until some of it was
// given up and taken again. So memory that is given back stays given back: what is advised to have
// huge pages for good is filled up again by khugepaged. As long as fewer than 64 blocks have
// something in use, nothing is collapsed.
//
// It owns no memory and no goroutine. Where the kernel cannot do it, or
// /sys/kernel/mm/transparent_hugepage/enabled says never, nothing is done. Nothing can fail.
package hugepage
