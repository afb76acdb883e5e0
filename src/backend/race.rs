//! The checks of `dlock doctor` with a temporary lock: that it can be taken, renewed and given back, and that of several
//! clients in a race exactly one gets it, whatever the documentation of the store promises.

use std::time::Duration;

use futures_util::future::join_all;

use super::diagnosis::{Answer, Diagnosis, Finding, Question, no_lock, remedy_of, short};
use super::{Attempt, Backend, Ending, Intent, Release, Renewal, StoreError};
use crate::clock::Moment;
use crate::lock::{Claim, Identity, LockName, Mode, Token};
use crate::random;

/// The number of clients, each of which has its own connection.
pub const CLIENTS: usize = 8;
const ROUNDS: usize = 20;
/// The lease of a temporary lock, in case it is not released.
pub const SCRATCH_LIFE: Duration = Duration::from_secs(10);

/// Returns the name of a temporary lock, which no other lock has.
pub fn scratch_name() -> LockName {
    LockName::new(&format!("dlock-doctor-{}", random::id())).expect("letters, digits and dashes")
}

/// Returns a claim to a temporary lock.
fn scratch_claim(name: &LockName, token: Token) -> Claim {
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

/// Tries a temporary lock with clients of the store: one of them alone, and then, if it can be used, several together.
/// Returns its name.
///
/// # Errors
/// As of [`race`].
pub async fn try_out<B: Backend>(
    client: impl Fn() -> B,
    diagnosis: &Diagnosis,
) -> Result<LockName, StoreError> {
    let name = scratch_name();
    try_out_as(&name, client, diagnosis).await.map(|()| name)
}

/// Does the same with a temporary lock of this name.
///
/// # Errors
/// As of [`race`].
pub async fn try_out_as<B: Backend>(
    name: &LockName,
    client: impl Fn() -> B,
    diagnosis: &Diagnosis,
) -> Result<(), StoreError> {
    if cycle(&mut client(), &scratch_claim(name, Token::random()), diagnosis).await {
        let mut clients: Vec<B> = (0..CLIENTS).map(|_| client()).collect();
        race(&mut clients, name, diagnosis).await?;
    }
    Ok(())
}

/// Takes a temporary lock, renews it and gives it back, and reports how that went. Returns whether it succeeded.
async fn cycle<B: Backend>(client: &mut B, claim: &Claim, diagnosis: &Diagnosis) -> bool {
    diagnosis.begin("lock");
    let start = Moment::now();
    let result = take_and_give_back(client, claim).await;
    let took = Moment::now() - start;
    let is_usable = result.is_ok();
    let found = format!("taken, renewed and given back in {}", short(took));
    diagnosis.found(result.map_or_else(|finding| finding, |()| Finding::ok("lock", found)));
    is_usable
}

const USELESS: &str = "no lock can be taken, or none can be kept";
const NAME_THE_STORE: &str = "name the store itself: no load balancer, proxy or cache in between";

async fn take_and_give_back<B: Backend>(client: &mut B, claim: &Claim) -> Result<(), Finding> {
    let problem = |what: &str, error: StoreError, consequence: String| {
        Finding::problem("lock", format!("cannot {what}: {error}"), consequence, remedy_of(&error))
    };
    let refused = |what: &str, error: StoreError| {
        let consequence = no_lock(error.failure_kind());
        problem(what, error, consequence)
    };
    let failed = |what: &str, error: StoreError| problem(what, error, USELESS.to_owned());
    let unexpected = |found: &str| Finding::problem("lock", found, USELESS, NAME_THE_STORE);
    client.connect().await.map_err(|error| refused("connect again", error))?;
    match client.try_acquire(claim, Intent::TakeNow).await.map_err(|error| refused("take it", error))? {
        Attempt::Granted(_) => {}
        _ => return Err(unexpected("a lock with a random name is held")),
    }
    let renewal = client.renew(claim, Duration::ZERO).await.map_err(|error| failed("renew it", error))?;
    if !matches!(renewal, Renewal::Held { .. }) {
        return Err(unexpected("it was gone at once"));
    }
    let release = client.release(claim, Duration::ZERO, Ending::default()).await;
    match release.map_err(|error| failed("give it back", error))? {
        Release::Released => Ok(()),
        _ => Err(unexpected("it was gone before it was given back")),
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
        NAME_THE_STORE,
    ));
    Ok(())
}
