package fsm

func (s *State) dispatchGroup(op Op, r *Result) error {
	return Errorf(CodeInternal, "no rule for %T", op)
}
