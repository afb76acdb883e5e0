//! What is wrong with the store, the table or the URL, in a sentence.

use crate::support::dlock::Dlock;
use crate::support::dynamodb::{Dynamo, key, table};
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::web::{Answer, Asked, Web};
use dlock::backend::ledger::Ledger;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn refused(url: &str, code: i32, message: &str) {
    // A key in the environment is not on the command line.
    let run = Dlock::run().no_backend().env("DLOCK_BACKEND", url).env("AWS_EC2_METADATA_DISABLED", "true");
    let output = run.args(["--connect-timeout", "2s"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert!(output.stderr.contains(message), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

fn url(port: u16) -> String {
    format!("dynamodb://key:secret@abc/p?endpoint=http://127.0.0.1:{port}")
}

fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let time = jiff::Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap();
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

fn reply(status: u16, body: &Value) -> Answer {
    (status, vec![("Date", date(SystemTime::now()))], body.to_string())
}

fn error(status: u16, name: &str) -> Answer {
    reply(status, &json!({"__type": format!("com.amazonaws.dynamodb.v20120810#{name}"), "message": "said"}))
}

/// The reply to `DescribeTable`, with changes.
fn description(changes: &Value) -> Answer {
    let mut description = table("key");
    description["TableStatus"] = "ACTIVE".into();
    for (name, value) in changes.as_object().expect("changes") {
        description[name] = value.clone();
    }
    reply(200, &json!({"Table": description}))
}

fn is_description(asked: &Asked) -> bool {
    asked.header("x-amz-target").is_some_and(|target| target.ends_with(".DescribeTable"))
}

#[test]
fn a_url_names_one_table_and_nothing_else() {
    for (url, message) in [
        ("dynamodb://abc", "the region of the table is missing: add region=, or set AWS_REGION"),
        ("dynamodb://abc:80?region=x", "dynamodb:// takes one table, as in dynamodb://TABLE/PREFIX"),
        ("dynamodb://ab?region=x", "the name of a table has 3 to 255 letters, digits, _, - or ."),
        ("dynamodb://abc?endpoint=h:9000", "an endpoint is http://HOST[:PORT] or https://HOST[:PORT]"),
        ("dynamodb://abc?region=x&recipe=java", "dlock or lock-client"),
        ("dynamodb://me@abc?region=x", "a username without a password"),
    ] {
        refused(url, 78, message);
    }
    let output =
        Dlock::run().backend("dynamodb://abc?region=x").args(["--ttl", "9s"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{}", output.stderr);
    assert!(output.stderr.contains("--ttl is at least 10s"), "{}", output.stderr);
}

#[test]
fn what_a_store_refuses_is_said_with_what_to_do() {
    let late = SystemTime::now() - Duration::from_secs(3600);
    let skewed = (400, vec![("Date", date(late))], error(400, "InvalidSignatureException").2);
    for (answer, code, message) in [
        (
            error(400, "ResourceNotFoundException"),
            78,
            "there is no table abc in us-east-1: create it with dlock doctor --init",
        ),
        (
            error(400, "AccessDeniedException"),
            77,
            "the credentials lack the right to dynamodb:DescribeTable on the table abc",
        ),
        (
            error(400, "UnrecognizedClientException"),
            77,
            "the store replies UnrecognizedClientException: said",
        ),
        (error(400, "ExpiredTokenException"), 77, "the credentials have expired (ExpiredTokenException)"),
        (error(400, "InvalidSignatureException"), 77, "the store replies InvalidSignatureException: said"),
        (skewed, 77, "refused because this host's clock is 1h"),
        (error(400, "ValidationException"), 78, "ValidationException: said"),
        ((404, Vec::new(), "no".into()), 78, "the server does not reply as DynamoDB does: check endpoint="),
        (reply(200, &json!([])), 78, "the server does not reply as DynamoDB does: check endpoint="),
        (error(500, "InternalServerError"), 69, "500 Internal Server Error: InternalServerError: said"),
        (error(400, "ThrottlingException"), 69, "the server replies ThrottlingException: said"),
        (
            error(400, "ReplicatedWriteConflictException"),
            69,
            "the store replies ReplicatedWriteConflictException: said",
        ),
    ] {
        let answered = answer.clone();
        let web = Web::start(move |_| Some(answered.clone()));
        refused(&url(web.port()), code, message);
    }
    let denied = Web::start(|asked| {
        Some(if is_description(asked) {
            description(&json!({}))
        } else {
            error(400, "AccessDeniedException")
        })
    });
    refused(&url(denied.port()), 77, "lack the right to dynamodb:UpdateItem on the table abc");
}

#[test]
fn a_table_that_is_not_fit_for_locks_is_refused() {
    let sort_key = json!({"KeySchema": [
        {"AttributeName": "key", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"},
    ]});
    let replicas = json!({"Replicas": [{"RegionName": "eu-west-1"}]});
    for (changes, code, message) in [
        (sort_key, 78, "the table abc cannot hold locks: it has a sort key"),
        (
            json!({"AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "N"}]}),
            78,
            "its partition key key is not a string",
        ),
        (replicas.clone(), 78, "it is a global table that replicates asynchronously"),
        (json!({"TableStatus": "DELETING"}), 78, "its status is DELETING"),
        (json!({"TableStatus": "CREATING"}), 69, "the table abc is being created"),
    ] {
        let answer = description(&changes);
        let web = Web::start(move |_| Some(answer.clone()));
        refused(&url(web.port()), code, message);
    }
    // With a region, and where all regions agree on each write, it is used.
    let consistent = json!({"Replicas": replicas["Replicas"], "MultiRegionConsistency": "STRONG"});
    for (changes, option) in [(replicas, "&region=us-east-1"), (consistent, "")] {
        let web = Web::start(move |asked| {
            Some(if is_description(asked) {
                description(&changes)
            } else {
                error(400, "AccessDeniedException")
            })
        });
        refused(&format!("{}{option}", url(web.port())), 77, "lack the right to dynamodb:UpdateItem");
    }
}

/// It has another part after each one: a hostile server must not make dlock take any amount of memory.
#[test]
fn a_scan_without_an_end_is_refused() {
    let (items, parts) =
        (vec![json!({"key": {"S": "p/x"}, "version": {"S": "1"}}); 5_000], AtomicUsize::new(0));
    let web = Web::start(move |asked| {
        if is_description(asked) {
            return Some(description(&json!({})));
        }
        let next = parts.fetch_add(1, Ordering::Relaxed).to_string();
        Some(reply(200, &json!({"Items": items, "LastEvaluatedKey": {"key": {"S": next}}})))
    });
    let status = Place::new().bare().env("DLOCK_BACKEND", url(web.port()));
    let status = status.args(["status", "--connect-timeout", "60s"]).output();
    assert_eq!((status.exit, status.stdout.as_str()), (Exit::Code(78), ""), "{}", status.stderr);
    let why = "the store has more than 100000 locks, which is too many to list: name those that are meant";
    assert!(status.stderr.contains(why), "{}", status.stderr);
}

#[test]
fn a_store_that_does_not_reply_is_unavailable_in_time() {
    refused("dynamodb://k:secret@abc?endpoint=http://127.0.0.1:1", 69, "connection refused");
    let half = Fake::answering_once("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"Table\"");
    refused(&url(half.port()), 69, "the server closed the connection");
    let silent = Fake::silent();
    refused(&url(silent.port()), 69, "; the command did not run");
}

/// What another program keeps under the key of a lock is left alone.
#[test]
fn an_item_of_another_program_is_never_overwritten() {
    let (place, server) = (Place::new(), Dynamo::lent());
    for (item, why) in [
        (
            json!({"ownerName": {"S": "java"}, "recordVersionNumber": {"S": "1"}}),
            "not written by dlock, or damaged",
        ),
        (json!({"idle": {"S": "1"}}), "not written by dlock, or damaged"),
        (
            json!({"version": {"S": "1"}, "ledger": {"S": "{\"format\": 9}"}}),
            "written by another dlock (format 9, known: 1 and 2)",
        ),
    ] {
        server.put(&key("x"), item);
        let before = server.item(&key("x"));
        refused(&server.url(), 78, why);
        let status = place.bare().args(["status", "-b", &server.url(), "--exit-code", "x"]).output();
        assert_eq!(status.exit, Exit::Code(77), "{status:?}");
        assert!(status.stdout.contains(why), "{status:?}");
        assert_eq!(server.item(&key("x")), before);
    }
    // One that takes the place of a held lock ends the command.
    let mut run =
        place.run().backend(server.url()).name("y").args(["--ttl", "10s"]).sh("echo held; sleep 60").spawn();
    run.await_stdout("held");
    server.put(&key("y"), json!({"ownerName": {"S": "java"}}));
    let before = server.item(&key("y"));
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert_eq!(server.item(&key("y")), before);
}

/// A write is dated by the reply before it. The store's clock may be behind the true time by the rest of a second, and by what
/// its servers differ.
#[test]
fn a_lease_is_longer_by_what_the_clock_does_not_show() {
    let web = Web::start(|asked| {
        let (status, _, body) = match is_description(asked) {
            true => description(&json!({})),
            false => reply(200, &json!({"Attributes": updated(asked)})),
        };
        Some((status, vec![("Date", "Fri, 30 Jan 2026 02:00:00 GMT".to_owned())], body))
    });
    let run = Dlock::run().no_backend().env("DLOCK_BACKEND", url(web.port()));
    let output = run.args(["--ttl", "60s"]).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let taken = web.asked().iter().find_map(|asked| {
        let taken = updated(asked)["taken"]["S"].as_str()?.to_owned();
        serde_json::from_str::<Value>(&taken).ok()
    });
    let taken = taken.expect("the lock was taken");
    let span = |value: &Value| serde_json::from_value::<Duration>(value.clone()).expect("a duration");
    assert_eq!(span(&taken["holder"]["lease_ends"]), Duration::from_secs(60 + 2));
    let clock = span(&taken["clock"]).as_secs();
    assert!((1_769_738_400..1_769_738_400 + 30).contains(&clock), "{clock}");
}

/// The item as this request leaves it.
fn updated(asked: &Asked) -> Value {
    let body: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
    let values = &body["ExpressionAttributeValues"];
    let mut item = json!({"key": {"S": "p/x"}});
    for name in ["version", "ledger", "taken", "idle"] {
        if let Some(value) = values.get(format!(":{name}")) {
            item[name] = value.clone();
        }
    }
    item
}

/// What is written is what a run reads.
#[test]
fn a_released_lock_keeps_its_counter_its_history_and_what_others_have_added() {
    let server = Dynamo::lent();
    let run = || Dlock::run().backend(server.url()).sh("echo $DLOCK_FENCING_TOKEN").output().stdout;
    let first: u64 = run().trim().parse().expect("a token");
    let mut item = server.item(&key("x"));
    assert_eq!(item["idle"], json!({"S": Ledger::FORMAT.to_string()}), "{item}");
    // A table with a TTL attribute deletes items in which that is a number.
    let attributes = item.as_object().expect("an item").values();
    assert!(attributes.clone().all(|value| value["S"].is_string()), "{item}");
    item["note"] = json!({"S": "of another program"});
    server.put(&key("x"), item);
    let second: u64 = run().trim().parse().expect("a token");
    assert!(second > first, "{first} {second}");
    let ledger = server.ledger("x");
    assert_eq!((ledger.fencing_token, ledger.history.len()), (second, 2), "{ledger:?}");
    assert_eq!(server.item(&key("x"))["note"], json!({"S": "of another program"}));
}
