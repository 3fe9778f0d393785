package fsm

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm/fsmpb"
	"google.golang.org/protobuf/proto"
)

// Limits of groups and jobs.
const (
	MaxGroups       = 1_000
	MaxWorkloads    = 10_000    // of a group, and of a catalog
	MaxMembers      = 10_000    // of a group
	MaxMemberKeys   = 1_000_000 // declared one by one, of all members together; runtimes too
	MaxCatalogBytes = 16 << 20
	MaxIdleCatalogs = 16        // that no group or member refers to
	maxAllCatalogs  = 512 << 20 // bytes of all catalogs together
	maxCatalogParts = 64
	maxPartBytes    = MaxCommandBytes - 64<<10 // leaves room for its record

	MaxGroupNameBytes   = 128
	MaxWorkloadKeyBytes = MaxKeyBytes - MaxGroupNameBytes - 1
	MaxFailureBytes     = 512
	MaxStuckBytes       = 16 << 10
	maxPlanInstances    = 10_000
	maxPlanReasons      = 1_000

	MaxJobs         = 20_000
	MaxJobRuns      = 32 // of a job, that are kept
	MaxOpenRuns     = 32 // under one grant
	MaxOutcomeBytes = 64
	MaxDetailBytes  = 512
)

func checkGroupOp(op Op) error {
	switch op := op.(type) {
	case *PutCatalog:
		return checkPutCatalog(op)
	case *PutGroup:
		return first(groupName(op.Group), checkSettings(op.Settings), optionalHash(op.CatalogHash), author(op.By, ""))
	case *JoinGroup:
		return checkJoinGroup(op)
	case *LeaveGroup:
		return first(groupName(op.Group), id("session_id", op.SessionId))
	case *PlanGroup:
		return checkPlanGroup(op)
	case *MoveWorkload:
		return first(groupName(op.Group), workloadKey(op.Workload), id("to_instance", op.ToInstance), author(op.By, op.Reason))
	case *SetPin:
		return first(groupName(op.Group), workloadKey(op.Workload), text("instance_id", op.InstanceId, 0, MaxIDBytes), author(op.By, op.Reason),
			checkMark(op.InstanceId != "", op.ExpiresInMs, op.MarkedRevision, op.Term))
	case *SetPause:
		return first(groupName(op.Group), workloadKey(op.Workload), author(op.By, op.Reason),
			checkMark(op.Paused, op.ExpiresInMs, op.MarkedRevision, op.Term))
	case *Prepared:
		return first(groupName(op.Group), workloadKey(op.Workload), number("token", op.Token), id("session_id", op.SessionId),
			text("message", op.Message, 0, MaxFailureBytes))
	case *ForgetFailure:
		return first(groupName(op.Group), workloadKey(op.Workload), number("token", op.Token), id("session_id", op.SessionId))
	case *RecordJob:
		return checkRecordJob(op)
	case *RecordOverlap:
		if op.CertainNs <= 0 || op.UncertaintyNs < 0 {
			return invalid("certain", "must be above 0 and uncertainty not below")
		}
		return first(key(op.Key), number("token_a", op.TokenA), number("token_b", op.TokenB), number("term", op.Term),
			text("instance_a", op.InstanceA, 0, MaxIDBytes), text("instance_b", op.InstanceB, 0, MaxIDBytes))
	case *RecordStuck:
		return first(key(op.Key), number("token", op.Token), id("session_id", op.SessionId), lines("detail", op.Detail, MaxStuckBytes))
	case *RecordSleep:
		return checkRecordSleep(op)
	case *DeleteGroup:
		return first(groupName(op.Group), author(op.By, ""))
	}
	return checkWorkerOp(op)
}

// groupName checks the name of a group. It has no slash, so that the keys of two
// groups' leases never meet, and is not that of the product's own keys.
func groupName(s string) error {
	if err := text("group", s, 1, MaxGroupNameBytes); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(s) == "":
		return invalid("group", "must not be blank")
	case strings.Contains(s, "/"):
		return invalid("group", "must not contain a slash")
	case s == "miw":
		return invalid("group", "must not be miw: keys below miw/ are the product's own")
	}
	return nil
}

func workloadKey(s string) error {
	if err := text("workload", s, 1, MaxWorkloadKeyBytes); err != nil {
		return err
	}
	if strings.TrimSpace(s) == "" {
		return invalid("workload", "must not be blank")
	}
	return nil
}

func catalogHash(s string) error {
	if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return invalid("catalog_hash", "must be 64 hexadecimal digits")
	}
	return nil
}

func optionalHash(s string) error {
	if s == "" {
		return nil
	}
	return catalogHash(s)
}

func checkSettings(s *GroupSettings) error {
	switch s.GetAssigner() {
	case "", AssignSticky, AssignBalanced, AssignPrimary, AssignCustom:
	default:
		return invalid("assigner", "is unknown, must be %s, %s, %s or %s", AssignSticky, AssignBalanced, AssignPrimary, AssignCustom)
	}
	switch s.GetRebalance() {
	case "", RebalanceImmediate, RebalanceGraceful:
	default:
		return invalid("rebalance", "is unknown, must be %s or %s", RebalanceImmediate, RebalanceGraceful)
	}
	if s.GetMaxMoves() > MaxWorkloads {
		return invalid("max_moves", "is %d, at most %d are allowed", s.GetMaxMoves(), MaxWorkloads)
	}
	return nil
}

func checkPutCatalog(op *PutCatalog) error {
	if err := catalogHash(op.Hash); err != nil {
		return err
	}
	if op.Parts == 0 || op.Parts > maxCatalogParts || op.Part >= op.Parts {
		return invalid("part", "is %d of %d, must be one of 1 to %d", op.Part, op.Parts, maxCatalogParts)
	}
	if len(op.Workloads) > MaxWorkloads {
		return tooManyWorkloads(len(op.Workloads))
	}
	if n := partSize(op.Workloads); n > maxPartBytes {
		return invalid("workloads", "have %d bytes, a part has at most %d", n, maxPartBytes)
	}
	return checkSpecs(op.Workloads)
}

// checkSpecs checks workloads, which must be sorted by key.
func checkSpecs(specs []*WorkloadSpec) error {
	for i, w := range specs {
		if err := checkSpec(w); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		switch strings.Compare(specs[i-1].GetKey(), w.GetKey()) {
		case 0:
			return invalid("workloads", "have the key %q twice", w.GetKey())
		case 1:
			return invalid("workloads", "must be sorted by key")
		}
	}
	return nil
}

func checkSpec(w *WorkloadSpec) error {
	if err := workloadKey(w.GetKey()); err != nil {
		return err
	}
	name := "workload " + w.GetKey()
	if err := text(name+": display_name", w.GetDisplayName(), 0, MaxNameBytes); err != nil {
		return err
	}
	if x := w.GetWeight(); !(x > 0) || math.IsInf(x, 0) {
		return invalid(name+": weight", "is %v, must be above 0 and finite", x)
	}
	return checkLabels(name+": ", w.GetLabels())
}

func checkLabels(prefix string, labels []*fsmpb.Label) error {
	if len(labels) > MaxLabels {
		return invalid(prefix+"labels", "are %d, at most %d are allowed", len(labels), MaxLabels)
	}
	for i, l := range labels {
		if err := text(prefix+"label key", l.GetKey(), 1, MaxLabelKeyBytes); err != nil {
			return err
		}
		if err := text(prefix+"label "+l.GetKey(), l.GetValue(), 0, MaxLabelValueBytes); err != nil {
			return err
		}
		if i > 0 && labels[i-1].GetKey() >= l.GetKey() {
			return invalid(prefix+"labels", "must be sorted by key, each key once")
		}
	}
	return nil
}

func checkJoinGroup(op *JoinGroup) error {
	declared := 0
	for _, set := range []bool{op.CatalogHash != "", len(op.Keys) > 0, op.All, len(op.Runtimes) > 0} {
		if set {
			declared++
		}
	}
	if declared != 1 {
		return invalid("declaration", "must be one of a catalog, keys, all and runtimes")
	}
	if x := op.Capacity; !(x >= 0) || math.IsInf(x, 0) {
		return invalid("capacity", "is %v, must be finite and not below 0", x)
	}
	if len(op.Keys) > MaxWorkloads {
		return tooManyWorkloads(len(op.Keys))
	}
	size := 0
	for i, k := range op.Keys {
		if err := workloadKey(k); err != nil {
			return err
		}
		if i > 0 && op.Keys[i-1] >= k {
			return invalid("workloads", "must be sorted, each once: %q", k)
		}
		size += len(k) + 4
	}
	if size > maxPartBytes {
		return invalid("workloads", "have %d bytes together, at most %d are allowed: declare all, or a catalog", size, maxPartBytes)
	}
	return first(groupName(op.Group), id("session_id", op.SessionId), optionalHash(op.CatalogHash), checkRuntimes(op.Runtimes), checkSettings(op.Settings))
}

func checkPlanGroup(op *PlanGroup) error {
	if err := first(groupName(op.Group), number("inputs", op.Inputs), number("planner_token", op.PlannerToken)); err != nil {
		return err
	}
	if len(op.Instances) > maxPlanInstances || len(op.Assignments) > MaxWorkloads || len(op.Reasons) > maxPlanReasons {
		return invalid("plan", "has %d instances, %d assignments and %d reasons, at most %d, %d and %d are allowed",
			len(op.Instances), len(op.Assignments), len(op.Reasons), maxPlanInstances, MaxWorkloads, maxPlanReasons)
	}
	for _, i := range op.Instances {
		if err := id("instance_id", i); err != nil {
			return err
		}
	}
	for _, r := range op.Reasons {
		if err := text("reason", r, 0, MaxReasonBytes); err != nil {
			return err
		}
	}
	for _, a := range op.Assignments {
		if err := workloadKey(a.GetWorkload()); err != nil {
			return err
		}
		if int(a.GetInstance()) >= len(op.Instances) || int(a.GetReason()) > len(op.Reasons) {
			return invalid("assignment", "of %q names an instance or a reason that the plan doesn't list", a.GetWorkload())
		}
	}
	if n := proto.Size(op); n > MaxCommandBytes {
		return invalid("plan", "has %d bytes, at most %d are allowed: send it in parts", n, MaxCommandBytes)
	}
	return nil
}

// checkMark checks what a pin and a pause have in common with the marks of an instance.
func checkMark(set bool, expiresInMs int64, markedRevision, term uint64) error {
	switch {
	case set && (markedRevision != 0 || term != 0):
		return invalid("marked_revision", "and term are for clearing")
	case !set && expiresInMs != 0:
		return invalid("expires_in", "is for setting")
	case (markedRevision == 0) != (term == 0):
		return invalid("marked_revision", "and term go together")
	}
	return span("expires_in", expiresInMs, 0, MaxMarkExpiry)
}

func checkRecordJob(op *RecordJob) error {
	switch {
	case op.Outcome == OutcomeLost:
		return invalid("outcome", "must not be lost: only the end of a lease says so")
	case op.Token == 0 && op.Outcome == OutcomeStarted:
		return invalid("token", "must be set to start a run: without a lease nothing would close it")
	case op.Token == 0 && op.LeaseKey != "":
		return invalid("token", "must be set where lease_key is")
	case op.Token != 0 && op.InstanceId != "":
		return invalid("instance_id", "is for records without a token")
	case op.LeaseKey != "":
		if err := text("lease_key", op.LeaseKey, 1, MaxKeyBytes); err != nil {
			return err
		}
	}
	return first(key(op.Key), text("outcome", op.Outcome, 0, MaxOutcomeBytes), lines("detail", op.Detail, MaxDetailBytes),
		text("instance_id", op.InstanceId, 0, MaxIDBytes))
}

// lines is text of several lines.
func lines(field, s string, high int) error {
	if len(s) > high {
		return invalid(field, "has %d bytes, at most %d are allowed", len(s), high)
	}
	if !utf8.ValidString(s) {
		return invalid(field, "is not valid UTF-8")
	}
	for i, c := range s {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return invalid(field, "has the control character %U at byte %d", c, i)
		}
	}
	return nil
}

// Clip makes s fit for a field of at most limit bytes of one line: control
// characters become spaces, faulty UTF-8 and what is too long goes.
func Clip(s string, limit int) string {
	return clip(s, limit, false)
}

// ClipLines is Clip for a field of several lines.
func ClipLines(s string, limit int) string {
	return clip(s, limit, true)
}

func clip(s string, limit int, several bool) string {
	var b strings.Builder
	for _, c := range strings.ToValidUTF8(s, "?") {
		if unicode.IsControl(c) && !(several && (c == '\n' || c == '\t')) {
			c = ' '
		}
		if b.Len()+utf8.RuneLen(c) > limit {
			break
		}
		b.WriteRune(c)
	}
	return b.String()
}

func tooManyWorkloads(n int) error {
	return invalid("workloads", "are %d, a group has at most %d", n, MaxWorkloads)
}

// partSize is what workloads add to a part, their lengths included.
func partSize(specs []*WorkloadSpec) (n int) {
	for _, w := range specs {
		n += specSize(w)
	}
	return n
}
