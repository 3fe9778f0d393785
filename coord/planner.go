package coord

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// Planning sets up how a group is planned by whichever of its instances does.
// Zero fields mean their defaults.
type Planning struct {
	// Settle is how long the planner waits after an instance has joined for
	// others to join too, at most four times over, before it spreads out what
	// nobody has had yet and balances. Defaults to 250 ms; negative means none.
	Settle time.Duration
	// CoolDown is the least time between two plans for the sake of balance.
	// What has nobody, or must move, does not wait for it. Defaults to 1 s;
	// negative means none.
	CoolDown time.Duration
	// RestartGrace is how long workloads whose instance died wait for its node
	// to come back, instead of going to others at once. Defaults to none. A
	// node that is back already, and has yet to join, is waited for in any case,
	// up to 5 s.
	RestartGrace time.Duration
	// Backoff is what a workload waits whose runs fail. The first failure does
	// not wait where another instance can try.
	Backoff Backoff
}

// Defaults of Planning.
const (
	DefaultSettle   = 250 * time.Millisecond
	DefaultCoolDown = time.Second
)

// returnGrace is how long a node that is back is given to join.
const returnGrace = 5 * time.Second

// Validate reports every fault of p at once.
func (p Planning) Validate() error {
	return errors.Join(notNegative("RestartGrace", p.RestartGrace), p.Backoff.Validate())
}

func (p Planning) withDefaults() Planning {
	p.Settle = max(0, cmp.Or(p.Settle, DefaultSettle))
	p.CoolDown = max(0, cmp.Or(p.CoolDown, DefaultCoolDown))
	p.Backoff = p.Backoff.withDefaults()
	return p
}

// PlannerStatus is a snapshot of one instance's part in planning a group.
type PlannerStatus struct {
	Group   string
	Leading bool      // this instance plans
	Token   uint64    // of its lease, 0 while it does not plan
	Plans   int       // that it made
	Placed  int       // workloads that its plans gave to somebody
	Last    time.Time // of its last plan
	Waiting int       // wanted workloads that wait, at its last look
	Later   int       // moves for the sake of balance that are put off
	// Error says why there is no new plan: the last good one stays. "" while
	// all is well.
	Error string
}

// planner plans for one group while it holds the group's lease for that.
type planner struct {
	c        Cluster
	group    string
	assigner Assigner // of this program, nil: as the group's settings say
	cfg      Planning
	log      *slog.Logger

	mu     sync.Mutex
	status PlannerStatus
}

func newPlanner(c Cluster, group string, a Assigner, cfg Planning, log *slog.Logger) *planner {
	return &planner{c: c, group: group, assigner: a, cfg: cfg.withDefaults(), log: log, status: PlannerStatus{Group: group}}
}

// runner is what queues for the lease: planning is singleton work like any other.
func (p *planner) runner() *Runner {
	cfg := RunnerConfig{Name: "planner of " + p.group, Logger: p.log, RestartDelay: -1, Backoff: Backoff{Max: 5 * time.Second}}
	cfg.Drain.Resume = true
	// A plan under a lost lease is refused by its token: one that takes long is
	// no reason to end the process.
	cfg.Stuck.WhenLost = PolicyReport
	return newRunner(p.c, fsm.PlannerKey(p.group), p.work, cfg.withDefaults(p.c, fsm.PlannerKey(p.group)))
}

func (p *planner) set(change func(*PlannerStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.status)
}

func (p *planner) state() PlannerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// notCandidate: who plans must have joined the group, or, where nobody who
// joined can plan, be a node.
var errNotCandidate = errors.New("this instance may not plan for the group: it is no member of it")

// candidacy is how long a planner that is granted its lease may not be one yet:
// its joining is under way.
const candidacy = 2 * time.Second

// work plans until the lease ends or the instance drains.
func (p *planner) work(ctx context.Context, l *Lease) error {
	wake, unwatch := p.c.Watch(fsm.GroupTopic(p.group))
	defer unwatch()
	t := newReign(p, l)
	p.set(func(s *PlannerStatus) { s.Leading, s.Token, s.Error = true, l.Token(), "" })
	defer p.set(func(s *PlannerStatus) { s.Leading, s.Token, s.Waiting, s.Later, s.Error = false, 0, 0, 0, "" })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-l.Draining():
			return nil
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer.C:
		}
		next, err := t.step(ctx)
		if err != nil {
			return err
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// Least and most time between two looks at a group that changes all the time:
// five times what a look takes, so that planning takes a sixth of a core at most.
const (
	leastPause = 20 * time.Millisecond
	mostPause  = time.Second
)

// reign is the planning under one grant; one goroutine owns it.
type reign struct {
	*planner
	lease *Lease
	began time.Time

	lookAt    time.Time // before that it does not look again
	balanceAt time.Time // before that it does not balance again
	joined    joinings
	patience  patience
	shunned   shunned
	unsettled bool // there is no balance yet, whatever the inputs say
	fault     fault
}

func newReign(p *planner, l *Lease) *reign {
	return &reign{planner: p, lease: l, began: time.Now(), patience: newPatience(p.cfg), shunned: make(shunned)}
}

// step looks at the group and plans if there is a reason. It returns when it
// must look again though nothing has changed; zero: not at all.
func (t *reign) step(ctx context.Context) (next time.Time, err error) {
	now := time.Now()
	if now.Before(t.lookAt) {
		return t.lookAt, nil
	}
	v := t.c.View()
	g, known := v.Group(t.group)
	self, live := v.Session(t.lease.seat.session.id)
	if !known || !live || !g.MayPlan(self) {
		if now.Sub(t.began) < candidacy {
			return t.began.Add(candidacy), nil
		}
		return time.Time{}, errNotCandidate
	}
	t.began = now.Add(-candidacy) // it is one now; when it ceases to be, it goes

	next = t.plan(ctx, v, g, now)
	if !next.IsZero() && next.Before(t.lookAt) {
		next = t.lookAt
	}
	return next, nil
}

// plan makes a plan of the group as v shows it, and proposes it.
func (t *reign) plan(ctx context.Context, v *fsm.View, g *fsm.Group, now time.Time) (next time.Time) {
	if t.fault.rests(now, g.Inputs) {
		return t.fault.until
	}
	settled := t.joined.settled(g, t.cfg.Settle, now)
	t.patience.begin(v, now, settled)
	d := newDraft(v, g, t.patience.hold)
	next = t.patience.end()
	t.shunned.apply(d)

	// What an operator moved stays until something changes that balance
	// depends on. What a failure moved has left its instance with too little.
	t.unsettled = t.unsettled || d.astray > 0
	seeks := g.Inputs != g.PlannedInputs || t.unsettled
	limits := noBalance
	if seeks && !now.Before(settled) && !now.Before(t.balanceAt) {
		limits = MoveLimits{Most: g.Settings.MaxMoves, UnderWay: d.underWay}
	}
	assigner, err := assignerFor(g.Settings, t.assigner)
	var moves, later []Move
	if err == nil {
		moves, later, err = d.moves(assigner, limits)
	}
	if err != nil {
		t.lookAt = now.Add(leastPause)
		t.faulty(ctx, err, now, g.Inputs)
		return earliest(next, t.fault.until)
	}
	t.lookAt = time.Now().Add(min(max(leastPause, 5*time.Since(now)), mostPause))
	t.well(ctx)
	t.set(func(s *PlannerStatus) { s.Waiting, s.Later = len(d.waiting), len(later) })

	whole := len(later) == 0 && !now.Before(settled)
	marks := whole && g.Inputs != g.PlannedInputs
	parts := proposals(g, d, t.lease.Token(), moves, !whole)
	if len(parts[0].Assignments) > 0 || marks && !now.Before(t.balanceAt) {
		if !t.propose(ctx, parts, now, g.Inputs) {
			return earliest(next, now.Add(t.c.RenewInterval()/2))
		}
		if whole || slices.ContainsFunc(moves, func(m Move) bool { return m.Cause == CauseRebalance }) {
			t.balanceAt = now.Add(t.cfg.CoolDown)
		}
		marks = false
	}
	t.unsettled = d.astray > 0 || t.unsettled && len(later) > 0
	if now.Before(settled) {
		next = earliest(next, settled)
	}
	if seeks && (marks || len(later) > 0) && now.Before(t.balanceAt) {
		next = earliest(next, t.balanceAt)
	}
	return next
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// propose proposes the parts of a plan, in order. A refusal is no fault: the
// group has moved on, and its change wakes the planner.
func (t *reign) propose(ctx context.Context, parts []*fsm.PlanGroup, now time.Time, inputs uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	placed := 0
	for _, part := range parts {
		res, err := t.c.Submit(ctx, part)
		if err == nil {
			err = fsm.ResultErr(res)
		}
		switch {
		case err == nil:
			placed += int(res.Total)
			continue
		case errors.Is(err, fsm.ErrInvalidArgument):
			t.faulty(ctx, err, now, inputs)
		default:
			t.log.Debug("plan not applied; planning anew", slog.Any("error", err))
		}
		return false
	}
	t.set(func(s *PlannerStatus) { s.Plans, s.Placed, s.Last = s.Plans+1, s.Placed+placed, now })
	if placed > 0 {
		t.log.Info("group planned", slog.Int("placed", placed), slog.Uint64("inputs", inputs))
	}
	return true
}

// Outcomes in the record of a group's planner, which every node can read: a job
// by the name of its lease.
const (
	outcomeNoPlan = "no_plan"
	outcomePlans  = "plans_again"
)

// record tells the cluster. Nothing depends on that.
func (t *reign) record(ctx context.Context, outcome, detail string) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	if _, err := Record(ctx, t.c, Execution{Lease: t.lease, Outcome: outcome, Detail: detail}); err != nil {
		t.log.Debug("not recorded", slog.String("outcome", outcome), slog.Any("error", err))
	}
}

// faultOfPlanner is why the present planner of a group gives no new plan, "" if
// it does.
func faultOfPlanner(v *fsm.View, group string) (why string) {
	key := fsm.PlannerKey(group)
	l, planned := v.Lease(key)
	job, known := v.Job(key)
	if !planned || !known {
		return ""
	}
	for r := range job.Recent() {
		if why = ""; r.Token == l.Token && r.Outcome == outcomeNoPlan {
			why = r.Detail
		}
	}
	return why
}

// faulty says why there is no plan; it is said once for as long as it stays.
func (t *reign) faulty(ctx context.Context, err error, now time.Time, inputs uint64) {
	said := t.fault.text == err.Error()
	t.fault.failed(err, now, inputs)
	t.set(func(s *PlannerStatus) { s.Error = err.Error() })
	if said {
		return
	}
	attrs := []any{slog.Any("error", err)}
	if p, ok := errors.AsType[*PanicError](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.Stack)))
	}
	t.log.Error("no new plan: the last good one stays", attrs...)
	t.record(ctx, outcomeNoPlan, err.Error())
}

// well takes that back.
func (t *reign) well(ctx context.Context) {
	if t.fault.text == "" {
		return
	}
	t.fault = fault{}
	t.set(func(s *PlannerStatus) { s.Error = "" })
	t.log.Info("plans again")
	t.record(ctx, outcomePlans, "")
}

// fault is what keeps a planner from planning.
type fault struct {
	text   string
	inputs uint64
	times  int
	until  time.Time
}

func (f *fault) failed(err error, now time.Time, inputs uint64) {
	f.text, f.inputs = err.Error(), inputs
	f.times++
	f.until = now.Add(Backoff{}.Delay(f.times, rand.Float64()))
}

// rests tells whether trying again would only repeat it.
func (f *fault) rests(now time.Time, inputs uint64) bool {
	return f.text != "" && f.inputs == inputs && now.Before(f.until)
}

// proposals are the commands of a plan: one, unless it is too large for that.
func proposals(g *fsm.Group, d *draft, token uint64, moves []Move, more bool) []*fsm.PlanGroup {
	var parts []*fsm.PlanGroup
	var instances, reasons map[string]uint32
	size := 0
	begin := func() {
		parts = append(parts, &fsm.PlanGroup{Group: g.Name, Inputs: g.Inputs, PlannerToken: token, More: true})
		instances, reasons, size = make(map[string]uint32), make(map[string]uint32), 0
	}
	begin()
	for _, m := range moves {
		if m.To == None {
			continue // the state tells its owner; whoever comes next gets it
		}
		if size > fsm.MaxCommandBytes*3/4 || len(reasons) >= mostReasons {
			begin()
		}
		part := parts[len(parts)-1]
		key, id := d.problem.Workloads[m.Workload].Key, d.problem.Instances[m.To].ID
		i, known := instances[id]
		if !known {
			i = uint32(len(part.Instances))
			instances[id] = i
			part.Instances = append(part.Instances, id)
			size += len(id) + 8
		}
		reason := reasonOf(m)
		n, known := reasons[reason]
		if !known {
			part.Reasons = append(part.Reasons, reason)
			n = uint32(len(part.Reasons))
			reasons[reason] = n
			size += len(reason) + 8
		}
		part.Assignments = append(part.Assignments, &fsm.Assignment{Workload: key, Instance: i, Reason: n})
		size += len(key) + 16
	}
	parts[len(parts)-1].More = more
	return parts
}

// mostReasons is how many different ones a plan may give.
const mostReasons = 500

// reasonOf is what the state keeps of why a workload moves: what many share.
func reasonOf(m Move) string {
	reason := m.Because
	if m.Cause != CauseRebalance {
		reason, _, _ = strings.Cut(reason, ", and ")
	}
	return fsm.Clip(reason, fsm.MaxReasonBytes)
}
