package fsm

import (
	"strings"
	"unicode/utf8"

	"github.com/miwnode/miwnode/fsm/fsmpb"
)

// Limits of workers.
const (
	MaxWorkers           = 10_000
	MaxRuntimeBytes      = 64
	MaxSourceBytes       = 2048
	MaxSources           = 32 // of a worker, that are kept
	MaxWorkerArgs        = 256
	MaxWorkerEnv         = 256
	MaxWorkerArgBytes    = 64 << 10 // arguments and environment together
	MaxWorkerConfigBytes = 64 << 10
	MaxWorkerTags        = 50 // keys and values are limited as those of labels
	MaxErrorTypeBytes    = 64
	MaxWorkerErrorBytes  = 1024
	MaxMemberRuntimes    = 1_000    // that an instance declares
	maxAllWorkers        = 64 << 20 // bytes of all records together

	workerIDBytes = 27
)

func checkWorkerOp(op Op) error {
	switch op := op.(type) {
	case *CreateWorker:
		return checkCreateWorker(op)
	case *StartWorker:
		return first(workerID(op.WorkerId), author(op.By, ""))
	case *StopWorker:
		return first(workerID(op.WorkerId), author(op.By, ""))
	case *ReloadWorker:
		if op.Source == "" && op.Sha256 != "" {
			return invalid("sha256", "is for another source")
		}
		if op.Source != "" {
			if err := checkSource(op.Source, op.Sha256); err != nil {
				return err
			}
		}
		return first(workerID(op.WorkerId), author(op.By, ""))
	case *DeleteWorker:
		return first(workerID(op.WorkerId), author(op.By, ""))
	case *SetWorkerTags:
		return first(workerID(op.WorkerId), checkTags(op.Tags), author(op.By, ""))
	case *BeginLoad:
		return first(workerID(op.WorkerId), number("token", op.Token))
	case *FinishLoad:
		if op.Size < 0 {
			return invalid("size", "is %d, must not be below 0", op.Size)
		}
		if !op.Ok && (op.Sha256 != "" || op.Size != 0) {
			return invalid("sha256", "and size are for what was loaded")
		}
		return first(workerID(op.WorkerId), number("attempt", op.Attempt), optionalDigest(op.Sha256), checkOutcome(op.Ok, op.ErrorType, op.Message))
	case *FinishRun:
		return first(workerID(op.WorkerId), number("token", op.Token), number("attempt", op.Attempt), checkOutcome(op.Ok, op.ErrorType, op.Message))
	}
	return invalid("op", "is unknown")
}

func checkCreateWorker(op *CreateWorker) error {
	switch op.Restart {
	case "", RestartOnFailure, RestartAlways, RestartNever:
	default:
		return invalid("restart", "is unknown, must be %s, %s or %s", RestartOnFailure, RestartAlways, RestartNever)
	}
	if strings.TrimSpace(op.Name) == "" {
		return invalid("name", "must not be blank")
	}
	return first(workerID(op.WorkerId), text("name", op.Name, 1, MaxNameBytes), runtimeName(op.Runtime), checkSource(op.Source, op.Sha256),
		checkArgs(op.Args, op.Env), checkConfig(op.Config), checkTags(op.Tags), author(op.By, ""))
}

// workerID checks that an ID has the form of random ones: what is not random
// might be used again.
func workerID(s string) error {
	if len(s) != workerIDBytes || s[0] != 'w' || strings.Trim(s[1:], "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return invalid("worker_id", "must be w and 26 characters of base32 in lower case")
	}
	return nil
}

// runtimeName leaves no room for a colon, which divides runtime and function.
func runtimeName(s string) error {
	if err := text("runtime", s, 1, MaxRuntimeBytes); err != nil {
		return err
	}
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return invalid("runtime", "must be of the characters a to z, 0 to 9, _ and -")
	}
	return nil
}

func checkSource(source, sha256 string) error {
	if err := first(text("source", source, 1, MaxSourceBytes), optionalDigest(sha256)); err != nil {
		return err
	}
	digest, ok := strings.CutPrefix(source, "sha256:")
	if !ok {
		return nil
	}
	if !hexDigest(digest) {
		return invalid("source", "must have 64 hexadecimal digits in lower case after sha256:")
	}
	if sha256 != "" && sha256 != digest {
		return invalid("sha256", "is not that of the source")
	}
	return nil
}

func hexDigest(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

func optionalDigest(s string) error {
	if s == "" || hexDigest(s) {
		return nil
	}
	return invalid("sha256", "must be 64 hexadecimal digits in lower case")
}

func checkArgs(args []string, env []*fsmpb.Label) error {
	if len(args) > MaxWorkerArgs {
		return invalid("args", "are %d, at most %d are allowed", len(args), MaxWorkerArgs)
	}
	if len(env) > MaxWorkerEnv {
		return invalid("env", "has %d variables, at most %d are allowed", len(env), MaxWorkerEnv)
	}
	size := 0
	for _, a := range args {
		if err := lines("args", a, MaxWorkerArgBytes); err != nil {
			return err
		}
		size += len(a)
	}
	for i, l := range env {
		if err := text("env key", l.GetKey(), 1, MaxLabelKeyBytes); err != nil {
			return err
		}
		if strings.Contains(l.Key, "=") {
			return invalid("env key", "must not contain an equals sign: %q", l.Key)
		}
		if err := lines("env "+l.Key, l.Value, MaxWorkerArgBytes); err != nil {
			return err
		}
		if i > 0 && env[i-1].Key >= l.Key {
			return invalid("env", "must be sorted by key, each key once")
		}
		size += len(l.Key) + len(l.Value)
	}
	if size > MaxWorkerArgBytes {
		return invalid("args", "and env have %d bytes together, at most %d are allowed", size, MaxWorkerArgBytes)
	}
	return nil
}

func checkConfig(config []byte) error {
	switch {
	case len(config) == 0:
		return nil
	case len(config) > MaxWorkerConfigBytes:
		return invalid("config", "has %d bytes, at most %d are allowed", len(config), MaxWorkerConfigBytes)
	case !utf8.Valid(config):
		return invalid("config", "is not valid UTF-8")
	case !validJSON(config):
		return invalid("config", "is not valid JSON")
	}
	return nil
}

func checkTags(tags []*fsmpb.Label) error {
	if len(tags) > MaxWorkerTags {
		return invalid("tags", "are %d, at most %d are allowed", len(tags), MaxWorkerTags)
	}
	for i, l := range tags {
		if err := text("tag key", l.GetKey(), 1, MaxLabelKeyBytes); err != nil {
			return err
		}
		if err := text("tag "+l.GetKey(), l.GetValue(), 0, MaxLabelValueBytes); err != nil {
			return err
		}
		if i > 0 && tags[i-1].GetKey() >= l.GetKey() {
			return invalid("tags", "must be sorted by key, each key once")
		}
	}
	return nil
}

// checkOutcome checks that what failed says so, and nothing else does.
func checkOutcome(ok bool, errorType, message string) error {
	if ok && (errorType != "" || message != "") {
		return invalid("error_type", "and message are for failures")
	}
	if ok {
		return nil
	}
	return first(text("error_type", errorType, 1, MaxErrorTypeBytes), lines("message", message, MaxWorkerErrorBytes))
}

// checkRuntimes checks what a member says it provides.
func checkRuntimes(runtimes []string) error {
	if len(runtimes) > MaxMemberRuntimes {
		return invalid("runtimes", "are %d, at most %d are allowed", len(runtimes), MaxMemberRuntimes)
	}
	size := 0
	for i, r := range runtimes {
		if err := checkProvided(r); err != nil {
			return err
		}
		if i > 0 && runtimes[i-1] >= r {
			return invalid("runtimes", "must be sorted, each once: %q", r)
		}
		if size += len(r) + 4; size > maxPartBytes {
			return invalid("runtimes", "have %d bytes and more together, at most %d are allowed", size, maxPartBytes)
		}
	}
	return nil
}

func checkProvided(s string) error {
	name, function, of := strings.Cut(s, ":")
	if err := runtimeName(name); err != nil {
		return err
	}
	if of != (name == RuntimeFunc) {
		return invalid("runtimes", "must be names of runtimes, or func:<name>: %q", s)
	}
	if of {
		return text("runtimes: function", function, 1, MaxSourceBytes)
	}
	return nil
}

// reserved keeps the group of the workers for them.
func reserved(op Op) error {
	switch op := op.(type) {
	case *PutGroup:
		if op.Group == WorkersGroup {
			return invalid("group", "must not be %s: the workers are its workloads", WorkersGroup)
		}
	case *DeleteGroup:
		if op.Group == WorkersGroup {
			return invalid("group", "must not be %s: it is there for the workers", WorkersGroup)
		}
	case *JoinGroup:
		if (op.Group == WorkersGroup) != (len(op.Runtimes) > 0) {
			return invalid("runtimes", "are for the group %s, which is joined with nothing else", WorkersGroup)
		}
	}
	return nil
}
