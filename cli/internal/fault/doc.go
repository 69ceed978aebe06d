// Package fault makes a server hang when a test asks for it. It does nothing, and links nothing, in
// a build without the tag fault.
package fault

import "github.com/lapsehq/lapse/tasks"

// Observer is told of what happens to tasks. It is nil in a build without the tag fault.
var Observer tasks.Observer
