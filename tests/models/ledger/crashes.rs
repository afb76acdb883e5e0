//! F51: the holder dies together with the first waiters. How late the next one is, and what that costs while all live.

use std::time::Duration;

use dlock::backend::ledger::{Decision, Ledger, Now, decide, document};
use dlock::backend::{Again, Attempt, CLAIM_WITHIN, Intent, Renewal};
use dlock::lock::{Claim, LockName, Mode, Token};

const TTL: Duration = Duration::from_secs(12);
const STEP: Duration = Duration::from_millis(100);
const HOLDER: usize = 0;

/// A holder and waiters, each of which sends a request when one is due. A request takes no time.
struct Run {
    now: Duration,
    ledger: Ledger,
    /// When each client sends its next request: first the holder, then the waiters.
    due: Vec<Duration>,
    /// How many requests each has sent.
    requests: Vec<u32>,
    /// How much later than due a renewal is sent.
    delay: Duration,
    /// The clients before this one are dead.
    dead: usize,
    /// The one that was granted the lock after the holder.
    granted: Option<usize>,
}

fn claim(client: usize) -> Claim {
    let token = Token::from_text(client.to_string());
    Claim { mode: Mode::Exclusive, ..Claim::new(LockName::new("x").unwrap(), token, TTL) }
}

impl Run {
    fn begin(waiters: usize, delay: Duration) -> Run {
        let clients = waiters + 1;
        let mut run = Run {
            now: Duration::from_secs(1000),
            ledger: Ledger::default(),
            due: vec![Duration::MAX; clients],
            requests: vec![0; clients],
            delay,
            dead: 0,
            granted: None,
        };
        for client in 0..clients {
            run.ask(client);
            run.now += Duration::from_millis(10);
        }
        run.granted = None;
        run
    }

    fn ask(&mut self, client: usize) {
        let (claim, before) = (claim(client), self.ledger.clone());
        self.requests[client] += 1;
        // A wall clock that stands gives tickets in order.
        let now = Now { clock: self.now, wall: 0 };
        let is_first = self.requests[HOLDER] == 1 && client == HOLDER;
        self.due[client] = if client == HOLDER && !is_first {
            let renewed = decide::renew(&mut self.ledger, &now, &claim, Duration::ZERO);
            assert!(matches!(renewed, Decision::Done { value: Renewal::Held { .. }, .. }), "{renewed:?}");
            self.now + TTL / 3 + self.delay
        } else {
            match decide::claim(&mut self.ledger, &now, &claim, Intent::Enqueue) {
                Decision::Done { value: Attempt::Busy(busy), .. } => match busy.again {
                    Again::Within(within) => self.now + within,
                    Again::Poll => unreachable!("each is notified"),
                },
                Decision::Done { value: Attempt::Granted(_), .. } => {
                    self.granted = Some(client);
                    self.now + TTL / 3
                }
                step => unreachable!("{step:?}"),
            }
        };
        let called = document::called(&before, &self.ledger);
        let next = document::next(&self.ledger, &called);
        for waiter in &self.ledger.waiters {
            let client: usize = waiter.token.parse().unwrap();
            let at = match () {
                () if called.contains(&waiter.ticket) => self.now,
                () if next == Some(waiter.ticket) => self.now + CLAIM_WITHIN,
                () => continue,
            };
            self.due[client] = self.due[client].min(at);
        }
    }

    /// Goes on until this time, or until the lock is granted to a waiter.
    fn go_on(&mut self, until: Duration) {
        while self.granted.is_none() {
            let first = (self.dead..self.due.len()).min_by_key(|client| self.due[*client]).unwrap();
            if self.due[first] > until {
                break;
            }
            self.now = self.now.max(self.due[first]);
            self.ask(first);
        }
        self.now = self.now.max(until);
    }
}

#[test]
fn each_dead_waiter_costs_the_next_one_half_a_second() {
    /// What is added for each of them, so that the living do not ask all at once.
    const APART: Duration = Duration::from_millis(30);
    for dead in 0..6_u32 {
        let living = dead as usize + 1;
        for steps in 0..400 {
            let mut run = Run::begin(living + 2, Duration::ZERO);
            run.go_on(run.now + STEP * steps);
            assert_eq!(run.granted, None, "the holder is alive");
            run.dead = living;
            let ends = run.ledger.holders[0].lease_ends.unwrap();
            run.go_on(ends + TTL * 4);
            let granted_at = run.due[living] - TTL / 3;
            assert_eq!(run.granted, Some(living), "{dead} dead after {steps} steps");
            let late = granted_at.checked_sub(ends).expect("not before the lease has ended");
            assert!(
                late <= (CLAIM_WITHIN + APART) * dead + APART,
                "{dead} dead after {steps} steps: {late:?}"
            );
        }
    }
}

#[test]
fn those_behind_the_second_ask_a_live_holder_about_once_a_lease() {
    const LEASES: u32 = 30;
    for (delay, most) in [(Duration::ZERO, LEASES + 2), (TTL / 60, LEASES * 3 / 2 + 2)] {
        let mut run = Run::begin(40, delay);
        run.go_on(run.now + TTL * LEASES);
        let asked = &run.requests[3..];
        assert!(asked.iter().all(|count| (LEASES..=most).contains(count)), "{delay:?}: {asked:?}");
        assert_eq!(run.granted, None);
    }
}
