package jepsen

// Promise is what a check holds the product to.
type Promise struct {
	Name, Text string
}

// promises are by the checks that try them.
var promises = map[string]Promise{
	CheckOverlap:       {"P1 one owner", "At no instant do two instances run the work of one key."},
	CheckTokens:        {"P2 fencing tokens", "The tokens of a key strictly grow; each start has a larger one, except a restart under the same grant."},
	CheckRegister:      {"P1, P4 linearizable leases", "Every key behaves as one lease register, calls without an answer included."},
	CheckAcks:          {"P3 durability", "Every acknowledged grant and release is in the log, once; nothing runs without a grant."},
	CheckRecords:       {"P3, P4 exactly once", "Every execution of a job that was recorded counts once, however often the record was repeated."},
	CheckTakeOver:      {"take-over", "A wanted key runs again within an election, a TTL and a commit, once a majority of the nodes is undisturbed."},
	CheckBounds:        {"take-over bounds", "Where one fault at most is to blame, nobody runs a key for no longer than is promised for its kind."},
	CheckHandOver:      {"hand-over", "A workload that is moved runs again a commit after the old run's stop."},
	CheckPlan:          {"group plans", "Nothing is given to an instance that drains or is cordoned."},
	CheckCatalogRecord: {"linearizable workers", "Every worker is one record with an etag, calls without an answer included."},
	CheckCatalogEvents: {"one event per transition", "Every transition of a worker has exactly one event, and they are a path of its states."},
	CheckLostStart:     {"no start is lost", "A start that was acknowledged, and neither stopped nor deleted afterwards, runs; or its worker has failed and says why."},
	CheckLoadedSource:  {"loads of the source", "What a worker says that was loaded is its source, tried since it was asked for; an earlier attempt's outcome never counts."},
	CheckDisk:          {"disks in trouble", "A node whose disk refuses a write says so and serves no longer; nothing that was acknowledged is lost."},

	CheckHash:     {"equal copies", "Copies of the state at one revision are equal."},
	CheckEvents:   {"P7 event streams", "No stream of events has a hole; all readers, late ones too, get the same."},
	CheckExits:    {"nodes stay up", "No node ends by itself, save one whose disk is full."},
	CheckRecovery: {"recovery", "Every node is ready again once all is healed."},
	CheckLeave:    {"bounded leave", "A node that is told to leave is gone within its bound."},
	CheckLeaks:    {"nothing left behind", "No process, goroutine or handle is left behind."},
	CheckHistory:  {"a sound recording", "The recording makes sense; nothing can be concluded from one that doesn't."},
}

// PromiseOf is what a check holds the product to; of a check that is not known here, its name.
func PromiseOf(check string) Promise {
	if p, ok := promises[check]; ok {
		return p
	}
	return Promise{Name: check}
}
