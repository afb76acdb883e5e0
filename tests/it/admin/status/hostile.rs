//! Descriptions from other clients cannot control a terminal, break the JSON, or take long.

use super::{holding, parse, status, waiting};
use crate::support::SOON;
use crate::support::pty::Terminal;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::eventually;
use serde_json::{Value, json};

/// An emoji with a selector, which some take for wider than its characters.
const CLOUD: &str = "\u{2601}\u{fe0f}";

/// Sets the clipboard, clears the screen, reverses text, adds lines and columns, is too long.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "\u{1b}]52;c;ZXZpbA==\u{7}",
        "\u{1b}[2J\u{1b}[H",
        "\u{9b}2J\u{9d}0;title\u{9c}",
        "abc\u{202e}cba\u{2066}\u{200b}\u{feff}",
        "a\r\nb\tc\u{b}\u{c}\u{8}\u{0}\u{7f}\u{85}\u{2028}\u{2029}",
        "\u{e0001}\u{e0041}",
        "\"}]}\\u001b",
        "e\u{301}\u{1F468}\u{200d}\u{1F469}",
        &CLOUD.repeat(60),
    ]
    .map(str::to_owned)
    .to_vec();
    texts.push("\u{1b}[31mx".repeat(1000));
    texts.push("x".repeat(1_000_000));
    texts
}

/// No control character except line ends, and no invisible character that changes how others are shown.
#[track_caller]
fn assert_harmless(text: &str) {
    let bad = |c: &char| {
        c.is_control() && *c != '\n'
            || matches!(*c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
    };
    if let Some(at) = text.char_indices().find(|(_, c)| bad(c)).map(|(at, _)| at) {
        let from = text[..at].char_indices().rev().nth(40).map_or(0, |(from, _)| from);
        panic!("{:?}", text[from..].chars().take(80).collect::<String>());
    }
}

/// Runs status in every form, and returns the JSON of status and of the history.
#[track_caller]
fn look(store: &Store) -> [Value; 2] {
    for args in [&[][..], &["x"], &["--history", "x"], &["--history", "--timeline", "x"]] {
        let output = status(store).args(args).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        assert_harmless(&output.stdout);
        for line in output.stdout.lines() {
            assert!(line.chars().count() < 5000, "a line of {} characters", line.chars().count());
        }
    }
    [&["--json"][..], &["--json", "--history", "x"]].map(|args| {
        let output = status(store).args(args).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        assert_harmless(&output.stdout);
        parse(&output.stdout)
    })
}

/// Runs status on a terminal: the only control sequences that dlock writes there are the colours of its words.
#[track_caller]
fn look_on_a_terminal(store: &Store) {
    let mut terminal = Terminal::bash(&store.place);
    for args in ["", "--json", "--history x", "--history --timeline x"] {
        let mut shown = terminal.ask(&format!("\"$DLOCK\" status -b '{}' {args}", store.url()));
        assert!(shown.contains(store.url().split('?').next().unwrap()), "{shown}");
        for colour in [0, 31, 32, 33, 36] {
            shown = shown.replace(&format!("\u{1b}[{colour}m"), "");
        }
        assert_harmless(&shown);
    }
}

fn identity(text: &str) -> Value {
    json!({"host": text, "pid": 1, "user": text, "command": text, "note": text, "url": text})
}

fn record(text: &str) -> Value {
    json!({"outcome": text, "identity": identity(text), "dlock_exit": -1, "waited_ms": u64::MAX, "held_ms": u64::MAX,
        "holder": identity(text), "reason": text, "error": text})
}

/// A holder and a waiter, whose heartbeats do not replace what the tests write into their entries; and a run in the
/// history.
fn fixture(store: &Store) -> (Running, Running) {
    assert_eq!(store.run_with_ttl("30s").command(["true"]).output().exit, Exit::Code(0));
    let holder = holding(store.run_with_ttl("1h"));
    let waiter = waiting(store.run_with_ttl("1h"));
    (holder, waiter)
}

/// The sidecar of the lock that this holder and this waiter have.
#[track_caller]
fn noted(store: &Store) -> Value {
    eventually(SOON, "a sidecar that is not being written", || {
        let is_whole = |noted: &Value| ["members", "line"].iter().all(|part| noted[*part][0].is_object());
        Some(store.place.noted("x")).filter(is_whole)
    })
}

/// The content of a sidecar file in the format of dlock: what does not fit into the first page is written after it.
fn write_sidecar(store: &Store, content: &[u8]) {
    let mut bytes = content.to_vec();
    if content.len() >= 4096 {
        bytes = format!("{{\"format\":1,\"at\":4096,\"length\":{}}}\n", content.len()).into_bytes();
        bytes.resize(4096, b' ');
        bytes.extend(content);
    }
    bytes.push(b'\n');
    std::fs::write(store.place.path("locks/x.dlock"), bytes).unwrap();
}

/// F45
#[test]
fn hostile_text_in_files_is_escaped() {
    let store = Store::file();
    let _runs = fixture(&store);
    let noted = noted(&store);
    assert!(noted["members"][0]["identity"]["pid"].is_u64(), "{noted}");
    for text in texts() {
        // No sidecar is longer than a mebibyte.
        let text: String = text.chars().take(50_000).collect();
        let mut noted = noted.clone();
        for part in ["members", "line"] {
            let identity_there = &mut noted[part][0]["identity"];
            for key in ["host", "user", "command", "note", "url"] {
                identity_there[key] = text.as_str().into();
            }
        }
        noted["members"][0]["revoked"] = json!({"by": text, "reason": text});
        write_sidecar(&store, noted.to_string().as_bytes());
        let mut line = record(&text);
        line["at"] = u64::MAX.into();
        std::fs::write(store.place.path("locks/x%history.dlock"), format!("{line}\n")).unwrap();
        let [seen, _] = look(&store);
        let holder = &seen["locks"][0]["holders"][0];
        assert_eq!((holder["host"].as_str(), holder["url"].as_str()), (Some(&*text), Some(&*text)));
        assert_eq!(seen["locks"][0]["waiters"][0]["host"], text.as_str());
    }
    look_on_a_terminal(&store);
    write_sidecar(&store, noted.to_string().as_bytes());
}

/// F45, F46: whatever the file contains, it is reported in one line, or the known part is shown.
#[test]
fn files_that_are_not_sidecars_do_not_crash_status() {
    let store = Store::file();
    let runs = fixture(&store);
    let noted = noted(&store).to_string();
    let _other = holding(store.run_with_ttl("30s").name("y"));
    let mut cases: Vec<Vec<u8>> = [
        &b"{"[..],
        b"\x1b]52;c;x\x07",
        b"\xff\xfe\xfd",
        b"[]",
        b"null",
        b"{\"format\":3}",
        b"{\"format\":\"\x1b[2J\"}",
        b"{\"format\":1}",
        b"{\"format\":1,\"fencing_token\":-1}",
        b"{\"format\":1,\"at\":4096,\"length\":99999999999}",
        b"{\"format\":1,\"at\":18446744073709551615,\"length\":16}",
        b"{\"format\":1,\"at\":0,\"length\":16}",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    cases.push(vec![b'['; 100_000]);
    cases.push(vec![b'x'; 1_000_000]);
    cases.push(noted.replace("\"host\":\"", "\"host\":\"\u{1b}").into_bytes());
    cases.push(noted.replace("exclusive", "\\u001b[2J").into_bytes());
    for case in cases {
        let shown = String::from_utf8_lossy(&case[..case.len().min(80)]).into_owned();
        std::fs::write(store.place.path("locks/x.dlock"), case).unwrap();
        let mut output = status(&store).arg("--json").output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{shown}");
        assert_harmless(&output.stdout);
        let seen = parse(&output.stdout);
        let others = seen["locks"].as_array().unwrap();
        assert!(others.iter().any(|lock| lock["name"] == "y" && lock["state"] == "held"), "{shown}: {seen}");
        assert!(
            others.iter().any(|lock| lock["name"] == "x" && lock["state"] == "unknown"),
            "{shown}: {seen}"
        );
        output = status(&store).arg("x").output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{shown}");
        assert_harmless(&output.stdout);
    }
    write_sidecar(&store, noted.as_bytes());
    drop(runs);
}

mod on_redis {
    use super::{fixture, identity, look, look_on_a_terminal, record, texts};
    use crate::admin::status::{parse, status};
    use crate::support::redis::Redis;
    use crate::support::resp::Value;
    use crate::support::running::Exit;
    use crate::support::store::Store;
    use serde_json::json;

    /// F45
    #[test]
    fn hostile_text_in_redis_is_escaped() {
        let redis = Redis::start();
        let store = Store::on(&redis);
        let _runs = fixture(&store);
        let mut client = redis.connect();
        let member = client.command(&["KEYS", "dlock#member:*"]).texts().remove(0);
        let token = member.rsplit(':').next().unwrap().to_owned();
        let waiting = client.command(&["ZRANGE", "dlock#queue:{dlock:x}", "0", "0"]).texts().remove(0);
        for text in texts() {
            let said = json!({"at": 1, "fencing": 1, "identity": identity(&text)}).to_string();
            client.command(&["SET", &member, &said, "PX", "3600000"]);
            let revocation = json!({"by": text, "reason": text}).to_string();
            client.command(&["HSET", "dlock#holder:{dlock:x}", &format!("r:{token}"), &revocation]);
            let waits = format!("x 1 1 99999999999999 0 {}", identity(&text));
            client.command(&["HSET", "dlock#waiters:{dlock:x}", &waiting, &waits]);
            for list in ["dlock#succeeded:{dlock:x}", "dlock#history:{dlock:x}", "dlock#missed:{dlock:x}"] {
                client.command(&["LPUSH", list, &format!("1 {}", record(&text))]);
            }
            let [seen, history] = look(&store);
            let holder = &seen["locks"][0]["holders"][0];
            // Longer than anything that a dlock writes.
            let is_too_long = text.len() > 1000;
            if !is_too_long {
                assert_eq!((holder["host"].as_str(), holder["url"].as_str()), (Some(&*text), Some(&*text)));
                assert_eq!(seen["locks"][0]["waiters"][0]["host"], text.as_str());
                let history = history["locks"][0]["history"].as_array().unwrap();
                assert!(history.iter().any(|record| record["outcome"] == text.as_str()), "{history:?}");
            }
            assert_eq!(seen["locks"][0]["state"], "held");
        }
        look_on_a_terminal(&store);
    }

    /// Invalid UTF-8, and invalid names.
    #[test]
    fn bytes_that_are_not_text_do_not_crash_status() {
        let redis = Redis::start();
        let store = Store::on(&redis);
        let _runs = fixture(&store);
        let script = r#"
            local bytes = '\255\254\0\27[2J'
            local tail = '{dlock:x}'
            local member = redis.call('KEYS', 'dlock#member:*')[1]
            local id = string.match(member, '([^:]*)$')
            redis.call('SET', member, bytes, 'PX', 3600000)
            redis.call('HSET', 'dlock#holder:' .. tail, 'r:' .. id, bytes)
            redis.call('HSET', 'dlock#holder:' .. tail, 'm:' .. id, string.rep(bytes, 100000))
            redis.call('HSET', 'dlock#holder:' .. tail, 'mode', string.rep('x', 1000000))
            for _, key in ipairs({'dlock#history:', 'dlock#missed:'}) do
              redis.call('LPUSH', key .. tail, bytes, '1 ' .. bytes, string.rep('x', 1000000), '')
            end
            local waiter = redis.call('ZRANGE', 'dlock#queue:' .. tail, 0, 0)[1]
            redis.call('HSET', 'dlock#waiters:' .. tail, waiter, 'x 99999999999999999999 1 99999999999999 0 ' .. bytes)
            redis.call('ZADD', 'dlock#locks', 1, bytes, 2, 'dlock:' .. bytes, 3, 'dlock:' .. string.rep('x', 100000), 4, 'dlock:')
        "#;
        assert_eq!(redis.command(&["EVAL", script, "0"]), Value::Nil);
        let [seen, history] = look(&store);
        let locks = seen["locks"].as_array().unwrap();
        assert_eq!((locks.len(), &locks[0]["name"], &locks[0]["state"]), (1, &"x".into(), &"held".into()));
        assert_eq!(history["locks"][0]["history"].as_array().unwrap().len(), 1, "{history}");
        look_on_a_terminal(&store);
    }

    /// Many clients, each with descriptions of the maximum length.
    #[test]
    fn many_long_texts_are_read_in_parts() {
        let redis = Redis::start();
        let store = Store::on(&redis);
        let _runs = fixture(&store);
        let said = json!({"at": 1, "fencing": 1, "identity": identity(&"\u{1b}".repeat(200))}).to_string();
        assert!(said.len() > 6000 && said.len() < 8192);
        let script = r#"
            local tail = '{dlock:x}'
            for i = 1, 100 do
              redis.call('HSET', 'dlock#holder:' .. tail, 'm:t' .. i, '')
              redis.call('SET', 'dlock#member:' .. tail .. ':t' .. i, ARGV[1], 'PX', 3600000)
              redis.call('LPUSH', 'dlock#history:' .. tail, ARGV[2])
            end
        "#;
        let old = format!("1 {}", record(&"\u{1b}".repeat(90)));
        assert!(old.len() > 6000 && old.len() < 8192, "{}", old.len());
        redis.command(&["EVAL", script, "0", &said, &old]);
        let output = status(&store).arg("--json").output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        assert_eq!(parse(&output.stdout)["locks"][0]["holders"].as_array().unwrap().len(), 101);
        let [_, history] = look(&store);
        // Of each list.
        let history = history["locks"][0]["history"].as_array().unwrap();
        let of_fixture = history.iter().filter(|record| record["exit_status"] == 0).count();
        assert_eq!((history.len() - of_fixture, of_fixture), (20, 1));
    }
}
