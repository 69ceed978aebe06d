// Package journal keeps frames, which are opaque bytes, durably and in their order, in a few files
// of a directory that are written over and over.
//
// A segment is what one file holds during one use: an opening, then frames, one after another. A
// full segment is closed, and the next one begins in a file that is free, or in a new one. The
// owner frees segments, the oldest first, once it no longer needs their frames. A file gets its
// size when it is made: a write that lengthens no file takes a sync a third less time. Trim removes
// files that are free.
//
//	frame    crc length segment check number payload padding
//	opening  the first frame of a segment; payload: oldest salt
//
// crc is the CRC-32C of what follows up to the padding, check is that of segment and number, and
// length counts the payload's bytes. segment and number count from 1 and tell a frame from what was
// there before; oldest is the lowest segment that was needed when this one began; salt are random
// bytes of the journal, which the sums of frames that are no openings take first. number, oldest
// and salt have 8 bytes, the others 4; all are little-endian. A frame begins at a multiple of 8.
//
// A frame is written when the one before it is durable. So what is broken, with a later frame
// behind it, is damage, and Open says so; a broken frame with none behind it was never confirmed.
// Damage to the very last frame cannot be told from that.
//
// What can fail: Open, with [ErrTorn] if frames are missing or damaged; and whatever the file
// system fails with. After an error of Append the journal must be opened anew.
package journal
