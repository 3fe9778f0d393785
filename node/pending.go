package node

// Placeholders until the lease side's files are in: each goes when its type lands.

type (
	// TestClock is exported by clock.go: a clock with a rate, an offset and a jump of boot time.
	TestClock struct{}
	clock     interface{}

	// leaseSide is what the lease side adds to a Node; node.go fills it in.
	leaseSide struct {
		proposer *proposer
		rounds   *rounds
		lessor   *lessor
		keeper   *sessionKeeper
		slots    *slots
	}
	proposer      struct{}
	rounds        struct{}
	lessor        struct{}
	sessionKeeper struct{}
	slots         struct{}
)
