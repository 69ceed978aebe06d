// Package docs tries what README.md and the pages in docs say. It has tests only.
//
// TestCommands runs their commands, in order, against the binary of this tree: each page in a shell
// and a directory of its own. What a page shows of the output must be there. Ids, times, receipts
// and ports may differ.
//
// TestPrograms looks at their programs. A program with a file name is written to the directory of
// its page, whose commands run it. Go that is a part of a program must stand in a compiled example.
//
// A block is a fence of Markdown. Its language says what becomes of it:
//
//	(none)   a transcript: commands after "$ ", and what they print
//	sh       commands
//	redis    a command of Redis, which redis-cli runs
//	sql      statements, which PostgreSQL runs where it is installed
//	go, js, ts, python, ...   a program; "python hook.py" gives it a file name
//	json, yaml, text          data, which is read where it can be
//
// A comment "<!-- run: COMMAND -->" is a command that the reader of the page does not see: it
// brings the server to where the next block begins. "<!-- new shell -->" begins anew, with another
// directory and other ports. Blocks that no test can run stand in exempt_test.go, with the reason.
// The pages of elsewhere_test.go have commands that other tests try, which it names one by one.
//
// The other tests are about all pages of the repository: how easy the prose reads, that each page
// has an example, and that what it links to and the tests and files that it names exist.
package docs
