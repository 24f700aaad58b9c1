package session

// The formats of what outlives a process, as this build writes them: entries of
// the log, and snapshots. Version is that of the commands in them.
const (
	EntryFormat    = entryVersion
	SnapshotFormat = snapshotVersion
)
