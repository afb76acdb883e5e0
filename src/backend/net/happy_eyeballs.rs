//! Connecting to one of several servers, so that one that does not respond delays a connection and does not prevent it:
//! the next one is tried as well (RFC 8305, "Happy Eyeballs").

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

use crate::backend::StoreError;

/// How long a server may take to complete a login before the next one is tried as well.
pub const HEAD_START: Duration = Duration::from_secs(1);

/// Tries `count` servers, beginning with `next`, and returns what the first attempt that completes has returned. Each
/// server is tried when the one before it has failed or has taken `head_start`. The other attempts are dropped.
///
/// `next` is the server in use afterwards. If there is none, it is the one after that which was tried first, also when
/// the future is dropped halfway: a caller whose limit is shorter than the head start gets past a server that does not
/// respond with its next call.
///
/// # Errors
/// All attempts have failed: the error of a server that may have received a request, or else the last one. An error that
/// a retry does not fix ends all attempts.
pub async fn first_server<T>(
    next: &mut usize,
    count: usize,
    head_start: Duration,
    attempt: impl AsyncFn(usize) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let first = *next % count;
    *next = (first + 1) % count;
    let attempt = async |server: usize| (server, attempt(server).await);
    let mut untried = (0..count).map(|place| (first + place) % count);
    let mut attempts: FuturesUnordered<_> = untried.next().into_iter().map(&attempt).collect();
    let (mut failure, mut has_received) = (StoreError::unreachable("no server"), false);
    loop {
        let ended = tokio::select! {
            ended = attempts.next() => ended,
            () = sleep(head_start), if untried.len() > 0 => None,
        };
        match ended {
            Some((server, Ok(completed))) => {
                *next = server;
                return Ok(completed);
            }
            // What is wrong with a server that runs explains more than that another one does not.
            Some((_, Err(error @ StoreError::Unavailable { maybe_applied, .. }))) => {
                has_received |= maybe_applied;
                if maybe_applied || !has_received {
                    failure = error;
                }
            }
            Some((_, Err(error))) => return Err(error),
            None => {}
        }
        attempts.extend(untried.next().map(&attempt));
        if attempts.is_empty() {
            return Err(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::pending;
    use std::time::Instant;

    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    /// Longer than any of these tests may take.
    const LONG: Duration = Duration::from_secs(3600);

    /// What a server does.
    #[derive(Clone, Copy)]
    enum Server {
        Silent,
        Refuses,
        HasNoQuorum,
        Rejects,
        CompletesAfter(Duration),
    }
    use Server::*;

    const COMPLETES: Server = CompletesAfter(Duration::ZERO);

    /// Notes an attempt that was dropped.
    struct Attempt<'a>(usize, &'a RefCell<Vec<String>>);

    impl Drop for Attempt<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().push(format!("end {}", self.0));
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(work)
    }

    async fn attempt(server: usize, kind: Server, log: &RefCell<Vec<String>>) -> Result<usize, StoreError> {
        log.borrow_mut().push(format!("begin {server}"));
        let _attempt = Attempt(server, log);
        match kind {
            Silent => pending().await,
            Refuses => Err(StoreError::unreachable(format!("{server} refuses"))),
            HasNoQuorum => Err(StoreError::unanswered(format!("{server} has no quorum"))),
            Rejects => Err(StoreError::Denied(format!("{server} rejects"))),
            CompletesAfter(delay) => {
                sleep(delay).await;
                Ok(server)
            }
        }
    }

    /// Returns the result, the server that is next, and what was begun and ended.
    fn tried(
        next: usize,
        servers: &[Server],
        head_start: Duration,
    ) -> (Result<usize, String>, usize, Vec<String>) {
        let (log, mut next) = (RefCell::new(Vec::new()), next);
        let attempts = first_server(&mut next, servers.len(), head_start, async |server| {
            attempt(server, servers[server], &log).await
        });
        let result = run(attempts).map_err(|error| error.to_string());
        (result, next, log.into_inner())
    }

    #[test]
    fn the_first_server_alone_is_tried_if_it_completes() {
        let log = ["begin 1", "end 1"].map(str::to_owned).to_vec();
        assert_eq!(tried(1, &[COMPLETES, COMPLETES], LONG), (Ok(1), 1, log.clone()));
        assert_eq!(tried(7, &[COMPLETES, COMPLETES], LONG), (Ok(1), 1, log));
    }

    #[test]
    fn a_server_that_fails_is_followed_at_once() {
        let log = ["begin 1", "end 1", "begin 2", "end 2", "begin 0", "end 0"].map(str::to_owned).to_vec();
        assert_eq!(tried(1, &[COMPLETES, Refuses, Refuses], LONG), (Ok(0), 0, log));
    }

    #[test]
    fn a_server_that_is_silent_is_followed_after_the_head_start_and_dropped() {
        let begin = Instant::now();
        let (result, next, log) = tried(0, &[Silent, Silent, COMPLETES], SHORT);
        assert!(begin.elapsed() >= SHORT * 2, "{:?}", begin.elapsed());
        assert_eq!((result, next), (Ok(2), 2));
        assert_eq!(log[..4], ["begin 0", "begin 1", "begin 2", "end 2"], "{log:?}");
        assert_eq!(log.len(), 6, "both others are dropped: {log:?}");
    }

    #[test]
    fn a_slow_server_wins_against_a_silent_one_that_follows() {
        let (result, next, log) = tried(0, &[CompletesAfter(SHORT * 2), Silent], SHORT);
        assert_eq!((result, next), (Ok(0), 0));
        assert_eq!(log, ["begin 0", "begin 1", "end 0", "end 1"]);
    }

    #[test]
    fn the_error_of_a_server_that_runs_is_returned() {
        let refused = tried(0, &[Refuses, Refuses], LONG);
        assert_eq!((refused.0, refused.1), (Err("1 refuses".to_owned()), 1));
        for servers in [[HasNoQuorum, Refuses], [Refuses, HasNoQuorum]] {
            let (result, _, log) = tried(0, &servers, LONG);
            assert!(result.is_err_and(|error| error.ends_with("has no quorum")), "{log:?}");
        }
    }

    #[test]
    fn an_error_that_no_retry_fixes_ends_all_attempts() {
        let log = ["begin 0", "end 0"].map(str::to_owned).to_vec();
        assert_eq!(tried(0, &[Rejects, COMPLETES], LONG), (Err("0 rejects".to_owned()), 1, log));
    }

    #[test]
    fn a_caller_that_gives_up_early_gets_past_a_silent_server() {
        let (log, mut next) = (RefCell::new(Vec::new()), 0);
        let mut call = async || {
            let attempts = first_server(&mut next, 2, LONG, async |server| {
                attempt(server, [Silent, COMPLETES][server], &log).await
            });
            timeout(SHORT, attempts).await.ok().and_then(Result::ok)
        };
        assert_eq!(run(async { (call().await, call().await) }), (None, Some(1)));
        assert_eq!(next, 1);
    }
}
