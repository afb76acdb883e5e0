//! A server, or a proxy in front of it, that repeats its input: its messages contain passwords and tokens then, which
//! must be in nothing that dlock prints, writes or stores.

use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use std::sync::{Arc, Mutex};

/// Of the URL, with a quote in it.
const ENCODED: &str = "hunter2-s3cret%22q";
/// However it is quoted, this is in it.
const TELLTALE: &str = "hunter2";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Servers that reply to each command with an error that quotes it, or a part of it.
fn servers() -> Vec<(&'static str, Fake)> {
    let quoted = |words: &[String]| {
        words
            .iter()
            .map(|word| format!("{:?}", word.chars().take(128).collect::<String>()))
            .collect::<Vec<_>>()
    };
    let error = |text: String| Some(format!("-{}\r\n", text.replace(['\r', '\n'], " ")).into_bytes());
    vec![
        ("words", Fake::scripted(move |words| error(format!("ERR bad command {}", words.join(" "))))),
        (
            "quoted",
            Fake::scripted(move |words| error(format!("ERR bad command {}", quoted(words).join(", ")))),
        ),
        ("denied", Fake::scripted(move |words| error(format!("NOPERM not you: {}", words.join(" "))))),
        ("auth", Fake::scripted(move |words| error(format!("WRONGPASS {}", words.join(":"))))),
        ("busy", Fake::scripted(move |words| error(format!("LOADING {}", words.join(" "))))),
        (
            "moved",
            Fake::scripted(move |words| {
                error(format!("MOVED 1 {}:6379", words.last().map(String::as_str).unwrap_or_default()))
            }),
        ),
        // Cut off in the middle of the password.
        (
            "cut",
            Fake::scripted(move |words| {
                let words = words.join(" ");
                let end = words.find(TELLTALE).map_or(words.len().min(100), |at| at + 10);
                error(format!("ERR near {}", &words[..end]))
            }),
        ),
        ("code", Fake::scripted(move |words| error(words.last().cloned().unwrap_or_default()))),
        (
            "value",
            Fake::scripted(move |words| {
                let last = words.last().cloned().unwrap_or_default();
                Some(format!("${}\r\n{last}\r\n", last.len()).into_bytes())
            }),
        ),
    ]
}

/// F55
#[test]
fn a_server_that_quotes_the_request_reveals_nothing() {
    let mut revealed = Vec::new();
    for (kind, server) in servers() {
        for scheme in ["redis", "redis-cluster", "redlock", "redis-sentinel"] {
            for query in ["", "protocol=resp2"] {
                let service = if scheme == "redis-sentinel" { "/main" } else { "" };
                let url = format!("{scheme}://me:{ENCODED}@127.0.0.1:{}{service}?{query}", server.port());
                let place = Place::new();
                let set = |run: Dlock| run.env("DLOCK_BACKEND", &url).env("DLOCK_TOKEN", TOKEN);
                let timeout = ["--connect-timeout", "1s"];
                let logs = ["-vvv", "--log-format", "json"];
                let run =
                    || set(place.run().no_backend().args(timeout)).args(["--report", "r"]).command(["true"]);
                let mut runs = vec![
                    run().arg("-vvv"),
                    set(place.bare().arg("renew").args(timeout).arg("x")),
                    set(place.bare().arg("status").args(timeout).arg("--json")),
                ];
                if scheme == "redis" {
                    runs.push(run().args(logs));
                    for command in ["release", "check"] {
                        runs.push(set(place.bare().arg(command).args(timeout).args(logs).arg("x")));
                    }
                    runs.push(set(place.bare().arg("status").args(timeout).arg("x")));
                    runs.push(set(place.bare().arg("doctor").args(timeout)));
                    runs.push(set(place.bare().arg("doctor").args(timeout).arg("--json")));
                }
                for run in runs {
                    let output = run.output();
                    assert_ne!(output.exit, Exit::Code(0), "{kind} {url}: {output:?}");
                    let all = format!("{}{}{}", output.stdout, output.stderr, place.read("r"));
                    if [TELLTALE, TOKEN].iter().any(|secret| all.contains(secret)) {
                        revealed.push(format!("{kind} {scheme} {query}: {all}"));
                    }
                }
            }
        }
    }
    assert!(revealed.is_empty(), "{}", revealed.join("\n"));
}

/// The descriptions of other clients are untrusted text, and so is a reason.
#[test]
fn a_store_with_the_password_in_its_documents_reveals_nothing() {
    let redis = Redis::start_with_args(&["--requirepass", "hunter2-s3cret"]);
    let place = Place::new();
    let url = format!("redis://:hunter2-s3cret@127.0.0.1:{}", redis.port());
    let run = || place.run().no_backend().env("DLOCK_BACKEND", &url);
    let holder = run()
        .args(["--note", "AUTH hunter2-s3cret"])
        .stdin(std::process::Stdio::piped())
        .sh("echo ready; exec cat");
    let mut holder = holder.spawn();
    holder.await_ready();
    let status = |options: &[&str]| {
        let output = place.bare().arg("status").args(options).env("DLOCK_BACKEND", &url).output();
        output.stdout + &output.stderr
    };
    let other = run().args(["--report", "r", "-v"]).command(["true"]).output();
    assert_eq!(other.exit, Exit::Code(75));
    assert!(other.stderr.contains("note: AUTH ***"), "{}", other.stderr);
    drop(holder.take_stdin());
    assert_eq!(holder.wait().exit, Exit::Code(0));
    let seen = [status(&["--history"]), status(&["--history", "--json"]), status(&["--json", "x"])].concat();
    let all = other.stderr + &place.read("r") + &seen;
    assert!(!all.contains("hunter2"), "{all}");
}

/// The message about a failed release is stored nowhere with a secret in it, and the run's own token is one.
#[test]
fn a_token_quoted_by_a_server_is_not_printed() {
    let tokens: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = tokens.clone();
    let server = Fake::scripted(move |words| {
        let text = words.join(" ").replace(['\r', '\n'], " ");
        let hex = text.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 32);
        seen.lock().unwrap().extend(hex.map(str::to_owned));
        Some(format!("-ERR {text}\r\n").into_bytes())
    });
    let place = Place::new();
    let run = place.run().backend(format!("redis://127.0.0.1:{}?protocol=resp2", server.port()));
    let output = run.args(["-vvv", "--report", "r", "--connect-timeout", "1s"]).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(69), "{}", output.stderr);
    let (all, tokens) = (output.stderr + &place.read("r"), tokens.lock().unwrap().clone());
    assert!(!tokens.is_empty() && !tokens.iter().any(|token| all.contains(token)), "{tokens:?}: {all}");
}
