//! Limits: of a ledger, of a reply, of a list and of the rate of requests.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::on_one_thread;
use crate::support::dlock::Dlock;
use crate::support::kubernetes::{Kubernetes, LEDGER, url_of};
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::web::Web;
use dlock::backend::Renewal;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The longest ledger that takes another waiter, in bytes.
const LONGEST: usize = 200 << 10;
/// The longest reply, in bytes.
const LONGEST_REPLY: usize = 4 << 20;
/// The token of the waiters that a test adds to a queue.
const ADDED: &str = "added";

/// Changes the ledger of the lock `x`, as no dlock does.
fn edit(server: &Kubernetes, edit: impl Fn(&mut Value)) {
    let mut lease = server.lease("x");
    let annotation = &mut lease["metadata"]["annotations"][LEDGER];
    let mut ledger = serde_json::from_str(annotation.as_str().expect("a ledger")).expect("JSON");
    edit(&mut ledger);
    *annotation = ledger.to_string().into();
    assert!(server.put("x", lease));
}

/// Adds waiters to a ledger that has one, until it has this length.
fn lengthen(ledger: &mut Value, length: usize) {
    let mut added = ledger["line"][0].clone();
    added["token"] = ADDED.into();
    let count = (length - ledger.to_string().len()) / (added.to_string().len() + ",".len());
    for _ in 0..count {
        let ticket = ledger["ticket"].as_u64().expect("a number") + 1;
        (ledger["ticket"], added["ticket"]) = (ticket.into(), ticket.into());
        ledger["line"].as_array_mut().expect("waiters").push(added.clone());
    }
    let rest = "c".repeat(length - ledger.to_string().len());
    let command = &mut ledger["line"][count]["identity"]["command"];
    *command = (command.as_str().expect("a text").to_owned() + &rest).into();
    assert_eq!(ledger.to_string().len(), length);
}

/// The annotations of an object have up to 256 KiB. The holder, and waiters that are in the queue, go on as before.
#[test]
fn a_run_waits_without_a_place_in_a_queue_that_is_too_long() {
    let (place, server) = (Place::new(), Kubernetes::lent());
    let waiters = || server.ledger("x").waiters.len();
    on_one_thread(async {
        let clients = [(); 3].map(|()| Client::at(&server.url(), "x").elsewhere());
        let [mut holder, mut first, mut last] = clients;
        holder.acquire().await;
        first.queue().await;
        edit(&server, |ledger| lengthen(ledger, LONGEST));
        let before = waiters();
        assert_eq!(last.queue().await.position.map(|position| position as usize), Some(before + 1));
        let run = place.run().backend(server.url()).args(["-v", "--ttl", "5s", "--wait", "10m"]);
        let mut run = run.sh("echo ran").spawn();
        run.await_stderr("; waiting outside the queue, 10m left");
        assert_eq!(waiters(), before + 1);
        assert!(matches!(holder.renew().await, Renewal::Held { .. }));
        holder.release().await;
        first.await_turn().await;
        first.claim_turn().await;
        edit(&server, |ledger| {
            ledger["line"].as_array_mut().expect("waiters").retain(|waiter| waiter["token"] != ADDED);
        });
        last.release().await;
        first.release().await;
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    });
}

/// A server that replies to all requests with this body.
fn replying(body: String) -> Web {
    let date = "Fri, 30 Jan 2026 02:00:00 GMT".to_owned();
    Web::start(move |_| Some((200, vec![("Date", date.clone())], body.clone())))
}

fn url(place: &Place, web: &Web) -> String {
    url_of(&place.path(""), &format!("http://127.0.0.1:{}", web.port()))
}

#[test]
fn a_reply_of_more_than_4_mib_is_refused() {
    let place = Place::new();
    let list = json!({"kind": "LeaseList", "metadata": {}, "items": []}).to_string();
    let status = |length: usize| -> Output {
        let web = replying(list.clone() + &" ".repeat(length - list.len()));
        place.bare().args(["status", "-b", &url(&place, &web)]).output()
    };
    assert_eq!(status(LONGEST_REPLY).exit, Exit::Code(0));
    let refused = status(LONGEST_REPLY + 1);
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(78), ""));
    assert!(
        refused.stderr.ends_with(": the server sends a reply of more than 4 MiB\n"),
        "{}",
        refused.stderr
    );
    let web = replying(" ".repeat(LONGEST_REPLY + 1));
    let run = Dlock::run().backend(url(&place, &web)).sh("echo ran").output();
    assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(78), ""));
    let why = ": the server sends a reply of more than 4 MiB; the command did not run\n";
    assert!(run.stderr.ends_with(why), "{}", run.stderr);
}

/// It has another part after each one: a hostile server must not make dlock take any amount of memory.
#[test]
fn a_list_without_an_end_is_refused() {
    let (place, parts) = (Place::new(), AtomicUsize::new(0));
    let metadata = json!({"name": "x", "resourceVersion": "1", "annotations": {LEDGER: "{}"}});
    let items = vec![json!({"metadata": metadata}); 5_000];
    let web = Web::start(move |_| {
        let next = parts.fetch_add(1, Ordering::Relaxed).to_string();
        let list = json!({"kind": "LeaseList", "metadata": {"continue": next}, "items": items});
        Some((200, vec![("Date", "Fri, 30 Jan 2026 02:00:00 GMT".to_owned())], list.to_string()))
    });
    let status = place.bare().args(["status", "--connect-timeout", "60s", "-b", &url(&place, &web)]).output();
    assert_eq!((status.exit, status.stdout.as_str()), (Exit::Code(78), ""), "{}", status.stderr);
    let why = "the store has more than 100000 locks, which is too many to list: name those that are meant";
    assert!(status.stderr.contains(why), "{}", status.stderr);
}

/// A server forgets old states after some minutes, and then refuses to continue a list that began in one (410).
#[test]
fn a_list_whose_state_the_server_has_forgotten_is_continued_in_the_latest() {
    const LOCKS: usize = 20;
    let (place, server) = (Place::new(), Kubernetes::with_fault("expires-lists"));
    let names: Vec<String> = (0..LOCKS).map(|number| format!("lock-{number:02}")).collect();
    on_one_thread(async {
        for name in &names {
            Client::at(&server.url(), name).acquire().await;
        }
    });
    let status = place.bare().args(["status", "-b", &server.url()]).output();
    assert_eq!((status.exit, status.stderr.as_str()), (Exit::Code(0), ""));
    let shown: Vec<&str> = status.stdout.lines().filter(|line| line.starts_with("lock-")).collect();
    assert_eq!(shown.len(), LOCKS, "{}", status.stdout);
    assert!(shown.iter().zip(&names).all(|(line, name)| line.starts_with(name)), "{}", status.stdout);
    assert_eq!(server.count("list"), 1 + 2 * 2, "each further part is asked for twice");
}

#[test]
fn the_pause_that_a_busy_server_asks_for_is_reported() {
    let said = "the server has received too many requests and has asked us to try again later";
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = requests.clone();
    let web = Web::start(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        let body = json!({"kind": "Status", "status": "Failure", "message": said, "reason": "TooManyRequests", "code": 429});
        Some((429, vec![("Retry-After", "7".to_owned())], body.to_string()))
    });
    let place = Place::new();
    let url = url(&place, &web);
    let run = place.run().backend(&url).args(["--connect-timeout", "2s"]).sh("echo ran").output();
    let expected = format!(
        "dlock: x on {url}: the server replies 429 Too Many Requests: {said}; it asks to wait 7s; the command did not run, see \
         --retry\n"
    );
    assert_eq!(run.outcome(), (Exit::Code(69), "", expected.as_str()));
    // The pauses between the attempts become longer.
    let requests = requests.load(Ordering::Relaxed);
    assert!((2..=20).contains(&requests), "{requests} requests in 2s");
}
