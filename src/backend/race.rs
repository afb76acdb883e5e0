//! A race of several clients for a free lock: the check that a store's grants are atomic where it runs, whatever its
//! documentation promises.

use std::time::Duration;

use futures_util::future::join_all;

use super::diagnosis::{Answer, Diagnosis, Finding, Question};
use super::{Attempt, Backend, Ending, Intent, StoreError};
use crate::lock::{Claim, Identity, LockName, Mode, Token};

/// The number of clients, each of which has its own connection.
pub const CLIENTS: usize = 8;
const ROUNDS: usize = 20;
/// The lease of a temporary lock, in case it is not released.
pub const SCRATCH_LIFE: Duration = Duration::from_secs(10);

/// Returns a claim to a temporary lock.
pub fn scratch_claim(name: &LockName, token: Token) -> Claim {
    Claim {
        name: name.clone(),
        token,
        mode: Mode::Exclusive,
        ttl: SCRATCH_LIFE,
        min_hold: Duration::ZERO,
        identity: Identity { pid: std::process::id(), command: "dlock doctor".into(), ..Identity::default() },
        outer: Vec::new(),
        requires_outer_hold: false,
        once_per: None,
    }
}

/// Lets the clients claim the free lock `name` at the same time, again and again, and reports how many of them got it.
///
/// # Errors
/// A request failed. A lock that was granted then ends with its lease, as it does when this future is dropped.
pub async fn race<B: Backend>(
    clients: &mut [B],
    name: &LockName,
    diagnosis: &Diagnosis,
) -> Result<(), StoreError> {
    diagnosis.begin("race");
    for client in clients.iter_mut() {
        client.connect().await?;
    }
    let (mut without_winner, mut with_several) = (0, 0);
    for _ in 0..ROUNDS {
        diagnosis.begin("race");
        let claims: Vec<Claim> = clients.iter().map(|_| scratch_claim(name, Token::random())).collect();
        let attempts =
            clients.iter_mut().zip(&claims).map(|(client, claim)| client.try_acquire(claim, Intent::TakeNow));
        let attempts = join_all(attempts).await;
        let mut winners = 0;
        for ((client, claim), attempt) in clients.iter_mut().zip(&claims).zip(attempts) {
            if let Attempt::Granted(_) = attempt? {
                winners += 1;
                client.release(claim, Duration::ZERO, Ending::default()).await?;
            }
        }
        match winners {
            0 => without_winner += 1,
            1 => {}
            _ => with_several += 1,
        }
    }
    let races = format!("{ROUNDS} races of {CLIENTS} connections for a free lock");
    let found = match (without_winner, with_several) {
        (0, 0) => {
            let found = format!("{races} had one winner each");
            diagnosis.answer(Question::AtomicGrant, Answer::new("yes", &found));
            diagnosis.found(Finding::ok("race", found));
            return Ok(());
        }
        (_, 0) => format!("{without_winner} of {races} had no winner"),
        _ => format!("{with_several} of {races} had several winners"),
    };
    diagnosis.answer(Question::AtomicGrant, Answer::new("no", &found));
    diagnosis.found(Finding::problem(
        "race",
        found,
        "two commands may run under the same lock at the same time, or a free lock is not granted",
        "name the store itself: no load balancer, proxy or cache in between",
    ));
    Ok(())
}
