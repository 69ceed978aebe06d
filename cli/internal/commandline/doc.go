// Package commandline reads command lines. A table of commands says what there is: a Command has
// either commands below it or a struct, whose exported fields are its arguments and flags. Tags of
// a field describe it:
//
//	help:"..."         what it is for
//	arg:""             an argument; without it the field is a flag
//	optional:""        the argument may be left out
//	required:""        the flag must be given
//	name:"..."         its name; else the field's, in lower case with hyphens
//	default:"..."      its value if it is not given
//	placeholder:"..."  its value in help texts
//	enum:"a,b"         the values that it may have
//	sep:";"            what separates elements of a list; else a comma; none: nothing does
//	env:"-"            the flag has no variable in the environment; else that of its name
//	group:"..."        the heading under which help texts list the flag
//	empty:""           an empty text means something; else it is an error on the line
//	negatable:""       the flag may be given as --no-name, too
//
// Fields of embedded structs belong to the command. A field may be a text, a number, a duration, a
// bool, an encoding.TextUnmarshaler, a pointer to or a list of these, or a map of texts.
//
// Parse finds the command of a line and what the line gives. The caller may then give flags from
// other sources, which the line wins over. Fill sets the fields and tells of every value that
// is wrong.
//
// It owns the form of lines, of help texts and of the manual page, and calls package client only,
// for durations. What can fail: [Command.Parse] and [Line.Fill] return a [UsageError] for wrong
// words and values. A field of a type that cannot be read panics.
//
// The package uses no method by its name at run time. Such a use, as in text/template and most
// libraries for command lines, makes the linker keep every exported method of the whole program.
package commandline
