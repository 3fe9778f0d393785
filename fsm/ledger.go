package fsm

import "time"

// LedgerEntry is one grant of the ownership history.
type LedgerEntry struct {
	Key             string
	Token           uint64
	Who             *Identity // never nil
	GrantedAt       int64     // stamp, Unix nanoseconds
	GrantedRevision uint64
	EndedAt         int64  // stamp; 0 = still open
	EndedRevision   uint64 // 0 = still open
	EndReason       EndReason
	Note            *Note // never nil
	// Gap is how long the key had been free when it was granted, by stamps. It
	// is computed when read, from the former entry of the key in the ring; 0
	// when that is gone, or when the key passed on in one entry.
	Gap time.Duration
}

// HistoryQuery selects entries of the ledger.
type HistoryQuery struct {
	Key   string // "" = all keys
	Since uint64 // only grants that began or ended after this revision
	Limit int    // the newest so many; <= 0 = 1000
}
