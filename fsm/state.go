package fsm

// Defects are planted bugs for the torture suite, which must catch each by its
// name. All are off in production.
type Defects struct {
	ReleaseByKey        bool // release and revoke don't look at the token
	ExpiryWithoutTerm   bool // a decision of an earlier reign is applied
	TokenResetOnRestore bool // the token counter starts anew with a snapshot
}

// State is the replicated state. One goroutine owns it; readers take a View.
type State struct{ view View }

// Option sets up a State.
type Option func(*State)

// WithDefects plants bugs.
func WithDefects(d Defects) Option { return func(s *State) {} }

// NewState returns an empty state.
func NewState(opts ...Option) *State {
	s := &State{}
	for _, o := range opts {
		o(s)
	}
	return s
}

// ProposalOutcome holds one Result per command of a Proposal, in order.
type ProposalOutcome struct {
	NodeID  string
	Boot    uint64
	Results []*Result
}

// Outcome is what applying one entry did.
type Outcome struct {
	Revision  uint64
	Proposals []ProposalOutcome
	Events    []*Event
	// Err is set when the Machine has halted and the entry was not applied.
	Err error
}

// Apply applies one entry of the log.
func (s *State) Apply(index, term uint64, b *Batch) *Outcome { return &Outcome{Revision: index} }

// View returns the state as of now, in constant time. It stays as it is while
// the State goes on.
func (s *State) View() *View { return &s.view }
