// Package exportfile writes exports to files and reads them. A file may be compressed, as its name
// says: .gz or .zst.
//
// An export that is interrupted leaves two files beside the one that it is to become: with the
// suffix .partial what was written, and with .progress how much of that counts, of which server,
// and the cursor of the next page. The next export of that server into the same file goes on there.
// Each page is on the disk before .progress counts it, and is compressed by itself, so that the
// file can be cut off behind it. One export at a time writes a file: .partial is locked.
//
// An import keeps beside the file, with the suffix .imported, how much of it is done, by which
// server, and which lines were refused. The file is locked meanwhile, where the file system has
// locks. A second import of it at the same time keeps nothing, and begins with the first line.
//
// What can fail: the files, and progress that belongs to another export.
package exportfile
