package task

// An Exported is a task as an export has it, and as an import takes it.
type Exported struct {
	// Task is the task as it stood. Its State is Pending, Held, Dead or Finished: a task that was
	// ready or being delivered waits for its next attempt where it is imported. Next of a pending
	// task is the time on record, without a place in a Spread.
	Task
	// Fingerprint is that of the request which created the task. A repeated request has the same.
	Fingerprint uint64
	// Stamp tells which act has changed the task last; 0: none has.
	Stamp uint64
}

// An ExportQuery asks for a page of an export.
type ExportQuery struct {
	// Topics are names, or beginnings of names and an asterisk; empty: all topics.
	Topics []string
	// Cursor is that of the page before; empty: the export begins.
	Cursor string
}

// A ScanQuery asks for some of the tasks that are neither dead nor finished.
type ScanQuery struct {
	// Topics are as in an ExportQuery.
	Topics []string
	// Cursor is that of the page before; 0: the scan begins. It is below 2^48+1.
	Cursor uint64
	// Limit is how many tasks are wanted, 1 to MaxScan. There may be more where ids are alike by
	// their hashes.
	Limit int
}

// A ScanPage is a part of a scan.
type ScanPage struct {
	// Tasks are as in an ExportPage, without Payload, Target and Attempts.
	Tasks []Exported
	// Cursor is for the next page; 0 at the end.
	Cursor uint64
}

// MaxScan bounds ScanQuery.Limit.
const MaxScan = 5000

// MaxExportTopics bounds ExportQuery.Topics.
const MaxExportTopics = 100

// An ExportPage is a part of an export.
type ExportPage struct {
	Topics []ExportedTopic // with stored settings
	Tasks  []Exported
	// Cursor is for the next page; empty at the end.
	Cursor string
	// Begins says that the tasks begin behind this page. If an earlier page has said so as
	// well, the export begins anew there, and what came in between is to be dropped.
	Begins bool
	// Counts are those of all pages so far.
	Counts ExportCounts
}

// ExportCounts are the lines of an export by their kind. A task that changes while the export runs
// may count twice.
type ExportCounts struct {
	Topics, Pending, Dead, Finished int
	// Unreadable counts records that this version cannot read. They are not exported.
	Unreadable int
}

// An ExportedTopic is the stored settings of a topic.
type ExportedTopic struct {
	Name     string
	Settings TopicSettings
}
