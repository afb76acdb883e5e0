//! What is wrong with the store, the bucket or the URL, in a sentence.

use super::fake::{self, Fault, date, error, reply};
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::s3::{S3, key};
use crate::support::web::{Answer, Web};
use dlock::backend::ledger::Ledger;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

fn refused(url: &str, code: i32, message: &str) {
    let output = run(url);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert!(output.stderr.contains(message), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

/// A key in the environment is not on the command line.
fn run(url: &str) -> Output {
    let run = Dlock::run().no_backend().env("DLOCK_BACKEND", url).env("AWS_EC2_METADATA_DISABLED", "true");
    run.args(["--connect-timeout", "10s"]).sh("echo ran").output()
}

#[test]
fn a_url_names_one_bucket_and_nothing_else() {
    for (url, message) in [
        ("s3://b", "the region of the bucket is missing: add region=, or set AWS_REGION"),
        ("s3://b:9000?region=x", "s3:// takes one bucket, as in s3://BUCKET/PREFIX; a server is endpoint="),
        ("s3://b?endpoint=h:9000", "an endpoint is http://HOST[:PORT] or https://HOST[:PORT]"),
        ("s3://b?endpoint=http://h&ca_file=/x", "'ca_file' needs TLS: use an endpoint= with https://"),
        ("s3://b?region=x&profile=nobody", "AWS's configuration files have no profile 'nobody'"),
        ("s3://me@b?region=x", "a username without a password: add it to the URL, or as password_file="),
    ] {
        refused(url, 78, message);
    }
    let output = Dlock::run().backend("s3://b?region=x").args(["--ttl", "9s"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{}", output.stderr);
    assert!(output.stderr.contains("--ttl is at least 10s"), "{}", output.stderr);
}

#[test]
fn what_a_store_refuses_is_said_with_what_to_do() {
    let with = |answer: Answer, header: (&'static str, &str)| {
        let (status, mut headers, body) = answer;
        headers.push((header.0, header.1.to_owned()));
        (status, headers, body)
    };
    let late = SystemTime::now() - Duration::from_secs(3600);
    let skewed = (403, vec![("Date", date(late))], error(403, "RequestTimeTooSkewed").2);
    let page = with(reply(200, Some(1), "<html>".into()), ("Content-Type", "text/html"));
    for (answer, code, message) in [
        (error(404, "NoSuchBucket"), 78, "there is no bucket b in us-east-1: create it"),
        (
            with(error(301, "PermanentRedirect"), ("x-amz-bucket-region", "eu-west-1")),
            78,
            "the bucket b is in the region eu-west-1, not in us-east-1: set region=eu-west-1",
        ),
        (
            error(403, "AccessDenied"),
            77,
            "the credentials lack the right to s3:GetObject (and s3:ListBucket)",
        ),
        (error(403, "SignatureDoesNotMatch"), 77, "the store replies SignatureDoesNotMatch: said"),
        (error(400, "ExpiredToken"), 77, "the credentials have expired (ExpiredToken)"),
        (skewed, 77, "refused because this host's clock is 1h"),
        (page, 78, "is not a lock of this dlock: not written by dlock, or damaged"),
        ((404, Vec::new(), "no".into()), 78, "the server does not reply as S3 does: check endpoint="),
        (
            with(error(307, "TemporaryRedirect"), ("Location", "http://h/")),
            78,
            "the server redirects to http://h/",
        ),
        (error(500, "InternalError"), 69, "500 Internal Server Error: InternalError: said"),
        (with(error(503, "SlowDown"), ("Retry-After", "7")), 69, "SlowDown: said; it asks to wait 7s"),
    ] {
        let answered = answer.clone();
        let web = Web::start(move |_| Some(answered.clone()));
        refused(&super::fake::url(web.port()), code, message);
    }
    let write = |status: u16, code: &'static str| {
        Web::start(move |asked| {
            Some(if asked.method == "GET" { error(404, "NoSuchKey") } else { error(status, code) })
        })
    };
    let denied = write(403, "AccessDenied");
    refused(&super::fake::url(denied.port()), 77, "lack the right to s3:PutObject in the bucket b");
    let unable = write(501, "NotImplemented");
    refused(&super::fake::url(unable.port()), 78, "the store does not support conditional writes");
}

/// It has another part after each one: a hostile server must not make dlock take any amount of memory.
#[test]
fn a_list_without_an_end_is_refused() {
    let (keys, parts) = ("<Key>p/x.dlock</Key>".repeat(5_000), AtomicUsize::new(0));
    let web = Web::start(move |_| {
        let next = parts.fetch_add(1, Ordering::Relaxed);
        let next = format!("<NextContinuationToken>{next}</NextContinuationToken>");
        Some(reply(200, None, format!("<ListBucketResult>{keys}{next}</ListBucketResult>")))
    });
    let status = Place::new().bare().env("DLOCK_BACKEND", super::fake::url(web.port()));
    let status = status.args(["status", "--connect-timeout", "60s"]).output();
    assert_eq!((status.exit, status.stdout.as_str()), (Exit::Code(78), ""), "{}", status.stderr);
    let why = "the store has more than 100000 locks, which is too many to list: name those that are meant";
    assert!(status.stderr.contains(why), "{}", status.stderr);
    assert_eq!(web.asked().len(), 21);
}

#[test]
fn a_store_that_ends_its_reply_too_early_is_unavailable() {
    let half =
        Fake::answering_once("HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: \"1\"\r\n\r\n{\"format\"");
    refused(&super::fake::url(half.port()), 69, "the server closed the connection");
}

#[test]
fn an_object_of_another_program_in_the_place_of_a_held_lock_ends_the_command() {
    let s3 = S3::lent();
    let mut run = Dlock::run().backend(s3.url()).args(["--ttl", "10s"]).sh("echo held; sleep 60").spawn();
    run.await_stdout("held");
    s3.put(&key("x"), "x");
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert_eq!(s3.object(&key("x")).as_deref(), Some("x"), "it was overwritten");
}

/// The job is not done again because the store was busy when it ended.
#[test]
fn a_success_is_recorded_when_the_store_can_be_asked_again() {
    // Requests 1 and 2 take the lock, 3 releases it.
    let web = fake::start(Fault::AsksForPauses(3, 12));
    let run = || {
        let run = Dlock::run().no_backend().env("DLOCK_BACKEND", fake::url(web.port()));
        run.args(["--once-per", "1h"]).sh("echo ran").output()
    };
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    assert!(web.asked().len() > 12, "it was not asked again");
    let next = run();
    assert_eq!((next.exit, next.stdout.as_str()), (Exit::Code(0), ""), "{}", next.stderr);
    assert!(next.stderr.contains("was done by"), "{}", next.stderr);
}

/// The lease counts from the clock that is ahead, as far as the client has seen it.
#[test]
fn a_lease_makes_up_for_clocks_that_differ() {
    let web = fake::start(Fault::ReadsAreBehind);
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let run = Dlock::run().no_backend().env("DLOCK_BACKEND", fake::url(web.port()));
    let output = run.args(["--ttl", "60s"]).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let asked = web.asked();
    let written = asked.iter().filter(|asked| asked.method == "PUT").map(|asked| Ledger::parse(&asked.body));
    let ends: Vec<u64> = written
        .filter_map(|ledger| ledger.unwrap().holders.first()?.lease_ends.map(|ends| ends.as_secs()))
        .collect();
    assert!(ends.last().is_some_and(|ends| *ends > began + 60), "{began}: {ends:?}");
}

/// The store's clock may be behind the true time by the rest of a second, and by what its servers differ.
#[test]
fn a_lease_is_longer_by_what_the_clock_does_not_show() {
    let web = Web::start(|asked| {
        let answer =
            if asked.method == "GET" { error(404, "NoSuchKey") } else { reply(200, Some(1), String::new()) };
        let (status, mut headers, body) = answer;
        headers.retain(|(name, _)| *name != "Date");
        headers.push(("Date", "Fri, 30 Jan 2026 02:00:00 GMT".to_owned()));
        Some((status, headers, body))
    });
    let run = Dlock::run().no_backend().env("DLOCK_BACKEND", super::fake::url(web.port()));
    let output = run.args(["--ttl", "60s"]).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let asked = web.asked();
    let written = asked.iter().find(|asked| asked.method == "PUT").expect("a write");
    let ledger = Ledger::parse(&written.body).expect("a ledger");
    assert_eq!(ledger.holders[0].lease_ends, Some(Duration::from_secs(1_769_738_400 + 60 + 2)));
}
