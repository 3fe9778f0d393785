package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/miwnode/miwnode/fsm"
)

// submitTimeout bounds what is proposed before it is tried anew.
const submitTimeout = 5 * time.Second

// holders numbers the drives of this process, so that no two are the same holder.
var holders atomic.Uint64

// drive loads a worker under the lease of its load and tells the outcome. An
// error means that it should be tried again; that others do it is none.
func (f *foreman) drive(ctx context.Context, w *fsm.Worker) error {
	key, holder := fsm.LoadKey(w.ID), "load-"+strconv.FormatUint(holders.Add(1), 10)
	slots := f.slots
	if deaths(f.c.View(), w, 0) >= suspectAfter {
		slots = f.suspects // who dies now dies of no other such
	}
	loaded, err := f.slot(ctx, slots) // first: others may drive it meanwhile
	if err != nil {
		return nil
	}
	defer loaded()
	if _, driven := f.c.View().Lease(key); driven {
		return nil
	}
	session, err := f.c.Session(ctx)
	if err != nil {
		return nilIf(ctx, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ending := f.c.SessionEnding(session)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		select {
		case <-ending:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-lost }()

	drop := f.c.Claim(key, holder)
	res, err := f.submit(ctx, &fsm.Acquire{Key: key, SessionId: session, Holder: holder})
	if err != nil {
		drop() // what a lost answer granted, the node gives back
		return declined(ctx, err)
	}
	token := res.Token
	defer func() {
		f.work.Go(func() {
			defer drop()
			f.release(ctx, &fsm.Release{Key: key, Token: token, SessionId: session})
		})
	}()
	return f.attempt(ctx, w, token, loaded)
}

// nilIf forgets an error that comes of the end of ctx.
func nilIf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// declined forgets a refusal that the copy shows, too, by now.
func declined(ctx context.Context, err error) error {
	switch fsm.CodeOf(err) {
	case fsm.CodeLeaseHeld, fsm.CodeDraining, fsm.CodeSessionExpired:
		return nil
	}
	return nilIf(ctx, err)
}

// attempt is the load under the token; loaded is called when it needs its slot
// no more.
func (f *foreman) attempt(ctx context.Context, w *fsm.Worker, token uint64, loaded func()) error {
	res, err := f.submit(ctx, &fsm.BeginLoad{WorkerId: w.ID, Token: token})
	if err != nil {
		return overtaken(ctx, err)
	}
	attempt := res.Token
	v := f.c.View()
	now, known := v.Worker(w.ID) // it may have been reloaded since
	if !known || now.State != fsm.WorkerLoading || now.Attempt != attempt {
		return nil
	}
	done := &fsm.FinishLoad{WorkerId: w.ID, Attempt: attempt}
	var code Code
	tries := deaths(v, now, 1)
	fault := Errorf(TypeDriverDied, "the nodes that loaded it died, %d in a row: it may be what ended them; reload it to try again", tries)
	if tries < maxDeaths {
		var unit Unit
		unit, code, tries, fault = f.try(ctx, now, now.Next)
		f.unload(w.ID, unit)
	}
	loaded()
	if ctx.Err() != nil {
		return nil // it stays loading, for another
	}
	done.Tries = uint32(tries)
	if fault != nil {
		done.ErrorType, done.Message = fault.told()
		f.log.Warn("the load of a worker failed", slog.String("worker_id", w.ID), slog.String("worker", w.Name),
			slog.String("type", fault.Type), slog.Any("error", fault), slog.Int("tries", tries))
	} else {
		done.Ok = true
		if code != nil {
			done.Sha256, done.Size = code.SHA256(), code.Size()
		}
		f.log.Info("worker loaded", slog.String("worker_id", w.ID), slog.String("worker", w.Name), slog.String("source", now.Next.Text), slog.Int("tries", tries))
	}
	return f.finish(ctx, done)
}

// overtaken forgets a refusal that says that the worker, or who may load it,
// has changed.
func overtaken(ctx context.Context, err error) error {
	switch fsm.CodeOf(err) {
	case fsm.CodeNotFound, fsm.CodeWrongState, fsm.CodeStaleToken:
		return nil
	}
	return nilIf(ctx, err)
}

// finish tells the outcome until it is answered. Told twice, it is refused the
// second time and changes nothing.
func (f *foreman) finish(ctx context.Context, op fsm.Op) error {
	for tries := 1; ; tries++ {
		_, err := f.submit(ctx, op)
		if errors.Is(err, fsm.ErrNoQuorum) || errors.Is(err, fsm.ErrUncertain) || errors.Is(err, fsm.ErrOverloaded) {
			if pause(ctx, redriveAfter.Delay(tries, 0)) == nil {
				continue
			}
		}
		return overtaken(ctx, err)
	}
}

// giveUp says that no instance has the runtime of a worker.
func (f *foreman) giveUp(ctx context.Context, w *fsm.Worker) error {
	return f.finish(ctx, &fsm.FinishLoad{
		WorkerId: w.ID, Attempt: w.Attempt, ErrorType: TypeRuntimeMissing,
		Message: fmt.Sprintf("no instance provides %s; one that does must join, then reload the worker", w.Needs(w.Next)),
	})
}

func (f *foreman) submit(ctx context.Context, op fsm.Op) (*fsm.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, submitTimeout)
	defer cancel()
	return submit(ctx, f.c, op)
}

// release gives the lease back, so that others need not wait for the session to end.
func (f *foreman) release(ctx context.Context, op *fsm.Release) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), submitTimeout)
	defer cancel()
	_, _ = submit(ctx, f.c, op) // what is not released now, the node gives back
}
