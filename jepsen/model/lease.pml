/* The lease protocol (rules by number): three nodes that may lead, one key, two holders. README.md tells what is
   modelled, what is not and why the bounds do. A macro drops one rule; each of them must give a violation. */
#ifndef MAXT
#define MAXT 3                           /* ticks of the one clock */
#endif
#ifndef MAXTERM
#define MAXTERM 3
#endif
#ifndef MAXTOK
#define MAXTOK 3                         /* grants of the key */
#endif
#define TTL 2
#define A 1                              /* holder 1: all that it does is here */
#define B 2                              /* holder 2: trusted for ever, works from its grant on until it stops by itself */
#define NOBODY 3
#define FREE 8                           /* a decision names a session to expire, or FREE + the token of a revoked grant */

byte now;
byte term[3], lt[3];                     /* a node's term; the one in which it believes to lead, 0 = none */
bool serving[3];                         /* such a node, after its barrier */
byte top = 1, cand = NOBODY;             /* the newest term, and who stands for it */
byte dl[3], rv[3]; bool expiring[3];     /* the leader's memory: deadline of A's session, end of a revoke, expiry decided */
byte qi, qt, qk;                         /* a decision in a queue: whose, of which term, what it names */

byte owner = A, tok = 1, live = 1;       /* replicated: who has the key under which token, A's live session */
bool rvk;                                /* replicated: A's grant is revoked */
byte most = 1; bool bworks;              /* ghosts: the largest token so far, B works */

byte ses = 1, trust = TTL, cp = 1;       /* A: session of its process (0 = dead), trusted until, token its copy shows as its own */
bool lag, need;                          /* A's copy lacks the last change of its leases; so it lacks what the answer covers */
byte rel;                                /* A: the token whose release is under way, or comes again later */
mtype = { idle, asked, arrived, seconded, answered, opening, opened };
mtype ka = idle; byte sent, at, att;     /* A's message: when sent, whom it reached, in which term */

#define AGREE(i) (lt[i] && ((term[0]==lt[i]) + (term[1]==lt[i]) + (term[2]==lt[i])) >= 2)
#define LEADS(i) (serving[i] && AGREE(i))            /* can commit; a deposed node that has not heard of it can't */
#define WORKS (ses && cp && now < trust)             /* A holds a locally valid lease */

#ifdef NO_ROUND                          /* 2: a keep-alive is answered without a proof */
#define SECONDS(i) true
#define PROVED(i) true
#else
#ifdef OLD_ANSWERS                       /* 2: answers that voters gave before it arrived count (raft.VerifyLeader) */
#define SECONDS(i) true
#else
#define SECONDS(i) (term[i] == att)
#endif
#define PROVED(i) (lt[i] == att)
#endif
#ifdef NO_BARRIER                        /* 3: the copy of a new leader may be as old as it likes */
#define STALE(i) (lt[i] > 1)
#else
#define STALE(i) (!AGREE(i))             /* deposed: it knows nothing of what came after */
#endif

inline token(who) { tok++; assert(tok > most); most = tok; owner = who } /* P2 */
inline to_b() { token(B); bworks = true }
inline to_a() { token(A); lag = true;
#ifdef GRANT_TRUSTS                      /* 4: a grant adds trust */
  trust = now + TTL
#endif
}
inline freed() {                         /* 8: to the next in the queue, in the same entry; or nobody waits */
  lag = true; rvk = false; rv[0] = 0; rv[1] = 0; rv[2] = 0; owner = 0;
#ifdef TOKEN_OF_KEY                      /* P2: the counter goes with the record of the lease */
  tok = 0;
#endif
  if :: !bworks && tok < MAXTOK -> to_b() :: skip fi }
inline ended(i) { live = 0; dl[i] = 0; expiring[i] = false; if :: owner == A -> freed() :: else fi }
inline forget(i) { expiring[i] = false;
#ifndef OLD_DEADLINES
  dl[i] = 0; rv[i] = 0
#endif
}

proctype Node(byte i) {
end: do
  /* elections: who stands raises its term; a voter raises its own before it votes; two of three win */
  :: atomic { top < MAXTERM && !lt[i] && (top > 1 || i == 1) -> top++; term[i] = top; cand = i }
  :: atomic { cand != NOBODY && cand != i && term[i] < top ->
       term[i] = top; lt[i] = 0; serving[i] = false; forget(0); forget(1); forget(2); lt[cand] = top; cand = NOBODY }
  :: atomic { lt[i] && lt[i] < top -> term[i] = top; lt[i] = 0; serving[i] = false }
  :: atomic { AGREE(i) && !serving[i] -> serving[i] = true; /* 3: the barrier; then everybody has a full TTL */
#ifndef OLD_DEADLINES                    /* 3: a new leader counts from what it remembers */
       if :: live -> dl[i] = now + TTL :: else fi;
       if :: rvk -> rv[i] = now + TTL :: else fi
#endif
     }
  /* 6: the leader decides, and the decision may lie in its queue for long */
  :: atomic { LEADS(i) && live && !expiring[i] && now >= dl[i] && qt < lt[i] -> qi = i; qt = lt[i]; qk = live;
#ifndef RENEWS_DECIDED                   /* 6: it goes on renewing what it has decided to expire */
       expiring[i] = true
#endif
     }
  :: atomic { LEADS(i) && rv[i] && now >= rv[i] && qt < lt[i] -> qi = i; qt = lt[i]; qk = FREE + tok }
  :: atomic { qt && qi == i && AGREE(i) ->
       if
#ifndef NO_TERM                          /* 6: the entry does not carry the term of its decision */
       :: qt != lt[i] -> skip
       :: qt == lt[i] && qk == live -> ended(i)
       :: qt == lt[i] && qk == FREE + tok && rvk -> freed()
#else
       :: qk == live -> ended(i)
       :: qk == FREE + tok && rvk -> freed()
#endif
       :: else -> skip
       fi; qi = 0; qt = 0; qk = 0 }
  :: atomic { LEADS(i) && owner == A && !rvk -> rvk = true; lag = true; /* 9: freed a TTL later */
#ifdef REVOKE_AT_ONCE                    /* 9 */
       rv[i] = now
#else
       rv[i] = now + TTL
#endif
     }
  :: atomic { LEADS(i) && rel -> /* 7: a release names the token; it may come again at any time */
#ifdef RELEASE_BY_KEY                    /* 7 */
       if :: owner == A -> freed() :: owner == B -> owner = 0 :: else fi
#else
       if :: owner == A && tok == rel -> freed() :: else fi
#endif
     }
  :: atomic { LEADS(i) && !owner && live && tok < MAXTOK -> to_a() }
  :: atomic { LEADS(i) && !owner && !bworks && tok < MAXTOK -> to_b() }
  :: atomic { LEADS(i) && owner == B && bworks -> bworks = false; /* B has stopped, and releases */
       if :: live && tok < MAXTOK -> to_a() :: owner = 0 fi }
  /* 2: a keep-alive arrives, a voter answers for its term, the leader looks at its own */
  :: atomic { ka == asked && serving[i] && !expiring[i] && (live == ses || STALE(i)) -> ka = arrived; at = i; att = lt[i];
       if :: AGREE(i) && dl[i] < now + TTL -> dl[i] = now + TTL :: else fi }
  :: atomic { ka == arrived && at != i && SECONDS(i) -> ka = seconded; need = lag && !STALE(at) } /* 5: covers what at knows */
  :: atomic { ka == seconded && at == i && PROVED(i) -> ka = answered; at = 0; att = 0 }
  :: atomic { (ka == arrived || ka == seconded) && at == i && lt[i] != att -> ka = idle; sent = 0; at = 0; att = 0; need = false }
  /* 10: the opening of the next boot closes the session of the last */
  :: atomic { LEADS(i) && ka == opening -> ka = opened;
       if :: live -> ended(i) :: else fi; live = ses; lag = true; dl[i] = now + TTL; expiring[i] = false }
#ifdef NO_PROOF                          /* 10: so does one whose former boot goes on */
  :: atomic { LEADS(i) && live == 1 -> ended(i) }
#endif
  od }

proctype Holder() {
end: do
  :: atomic { ses && ka == idle && now < trust -> ka = asked; sent = now }
#ifdef NO_COVER                          /* 5: an answer counts although the copy lacks what it covers */
  :: atomic { ka == answered ->
#else
  :: atomic { ka == answered && !need -> /* as late as it likes */
#endif
#ifdef FROM_RECEIPT                      /* 4: counts from the receipt of the answer */
       sent = now;
#endif
       if :: trust < sent + TTL -> trust = sent + TTL :: else fi; ka = idle; sent = 0; need = false }
  :: atomic { ses && lag -> lag = false; need = false; /* the copy catches up */
       if :: owner == A && live == ses && !rvk && rel != tok -> cp = tok :: else -> cp = 0 fi }
  :: atomic { WORKS && !rel -> rel = cp; cp = 0 } /* 7: stops, then releases */
  :: atomic { ses == 1 -> ses = 0; trust = 0; lag = true; need = false; cp = 0; ka = idle; sent = 0; at = 0; att = 0 } /* crash */
  :: atomic { !ses -> ses = 2; ka = opening; sent = now }
  :: atomic { ka == opened -> trust = sent + TTL; ka = idle; sent = 0 }
  od }

proctype Clock() { end: do :: now < MAXT -> now++ od }
proctype P1() { atomic { bworks && WORKS -> assert(!bworks) } }

init { atomic {
  term[0] = 1; term[1] = 1; term[2] = 1; lt[0] = 1; serving[0] = true; dl[0] = TTL;
  run Node(0); run Node(1); run Node(2); run Holder(); run Clock(); run P1() } }
