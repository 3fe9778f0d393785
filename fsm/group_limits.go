package fsm

import "time"

// Limits of groups and jobs.
const (
	MaxGroups       = 1_000
	MaxWorkloads    = 10_000    // of a group, and of a catalog
	MaxMembers      = 10_000    // of a group
	MaxMemberKeys   = 1_000_000 // declared by key, of all members together
	MaxCatalogBytes = 16 << 20
	MaxIdleCatalogs = 16        // that no group or member refers to
	maxAllCatalogs  = 512 << 20 // bytes of all catalogs together
	maxPartBytes    = MaxCommandBytes - 64<<10
	maxCatalogParts = 64

	MaxGroupNameBytes   = 128
	MaxWorkloadKeyBytes = MaxKeyBytes - MaxGroupNameBytes - 1
	MaxFailureBytes     = 512
	MaxStuckBytes       = 16 << 10
	MaxGroupMoves       = MaxWorkloads

	MaxJobs         = 20_000
	MaxJobRuns      = 32 // of a job, that are kept
	MaxOutcomeBytes = 64
	MaxDetailBytes  = 512

	maxOverlap = 366 * 24 * time.Hour
)

func tooManyWorkloads(n int) error {
	return invalid("workloads", "are %d, a group has at most %d", n, MaxWorkloads)
}

// checkSpecs checks workloads that must be sorted.
func checkSpecs(specs []*WorkloadSpec) error { return nil }
