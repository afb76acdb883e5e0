//! Every request that clients send to a Redis, as `MONITOR` shows it: a script is one request, whatever it calls.

use super::SOON;
use super::redis::{Connection, Redis};
use super::resp;
use super::wait::until;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it was executed, by the server's clock, since 1970.
    pub at: Duration,
    /// Address of the client end of the connection.
    pub client: String,
    /// The name of the command in capitals, then its arguments; long ones are truncated.
    pub words: Vec<String>,
}

impl Request {
    /// The token that one of dlock's scripts was run with.
    pub fn token(&self) -> Option<&str> {
        // EVAL, the script, 1, the lock, the request, which begins with the token.
        let request = self.words.first()?.starts_with("EVAL").then(|| self.words.get(4)).flatten()?;
        Some(request.strip_prefix(r#"{\"token\":\""#)?.split_once('\\')?.0)
    }
}

#[derive(Debug, Default)]
struct Seen {
    requests: Vec<Request>,
    bytes: u64,
}

/// A client that receives the requests of all others.
#[derive(Debug)]
pub struct Monitor {
    stream: TcpStream,
    control: Mutex<Connection>,
    own: String,
    seen: Arc<Mutex<Seen>>,
}

/// Longer words are truncated.
const LONGEST: usize = 100;

impl Monitor {
    /// Starts to monitor a server.
    pub fn of(redis: &Redis) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("a server that was started");
        stream.write_all(&resp::encode(&["MONITOR"])).expect("a server that listens");
        let mut control = redis.connect();
        let own = control.command(&["CLIENT", "INFO"]).text();
        let own = own.split(' ').find_map(|word| word.strip_prefix("addr=")).expect("an address").to_owned();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let monitor = Self {
            stream: stream.try_clone().expect("a descriptor"),
            control: Mutex::new(control),
            own,
            seen: Arc::clone(&seen),
        };
        std::thread::spawn(move || watch(BufReader::new(stream), &seen));
        monitor.catch_up();
        monitor
    }

    /// Waits until all requests sent so far were seen.
    #[track_caller]
    fn catch_up(&self) {
        let mark = super::process::Marker::unique();
        until(SOON, "a monitor that sees everything", || {
            self.control.lock().unwrap_or_else(PoisonError::into_inner).command(&["ECHO", mark.value()]);
            lock(&self.seen).requests.iter().rev().any(|request| request.words[1..] == [mark.value()])
        });
    }

    /// The requests of dlock processes so far: those of clients that have ever run a script.
    #[track_caller]
    pub fn requests(&self) -> Vec<Request> {
        self.catch_up();
        let requests = lock(&self.seen).requests.clone();
        let dlocks: std::collections::HashSet<String> = requests
            .iter()
            .filter(|request| request.token().is_some())
            .map(|request| request.client.clone())
            .collect();
        requests
            .into_iter()
            .filter(|request| request.client != self.own && dlocks.contains(&request.client))
            .collect()
    }

    /// Number of bytes that the server has received from all clients, and sent to all but this monitor.
    #[track_caller]
    pub fn traffic(&self) -> (u64, u64) {
        self.catch_up();
        let own = lock(&self.seen).bytes;
        let info = self.control.lock().unwrap_or_else(PoisonError::into_inner).command(&["INFO", "stats"]);
        let field = |name: &str| -> u64 {
            let text = info.text();
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|number| number.trim().parse().ok()).expect("a number")
        };
        (field("total_net_input_bytes"), field("total_net_output_bytes").saturating_sub(own))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn watch(mut from: BufReader<TcpStream>, seen: &Mutex<Seen>) {
    let mut line = Vec::new();
    while let Ok(count @ 1..) = from.read_until(b'\n', &mut line) {
        let request = parse(&String::from_utf8_lossy(&line));
        line.clear();
        let mut seen = lock(seen);
        seen.bytes += count as u64;
        seen.requests.extend(request);
    }
}

/// `+1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`; `[0 lua]` marks a call of a script. A quote within a word is
/// preceded by a backslash, so three characters separate two words.
fn parse(line: &str) -> Option<Request> {
    let (time, rest) = line.strip_prefix('+')?.split_once(" [")?;
    let (client, words) = rest.split_once("] \"")?;
    let client = client.split_once(' ')?.1;
    if client == "lua" {
        return None;
    }
    let mut words: Vec<String> = words
        .trim_end()
        .trim_end_matches('"')
        .split("\" \"")
        .map(|word| word.chars().take(LONGEST).collect())
        .collect();
    words[0].make_ascii_uppercase();
    let (seconds, micros) = time.split_once('.')?;
    let at = Duration::from_secs(seconds.parse().ok()?) + Duration::from_micros(micros.parse().ok()?);
    Some(Request { at, client: client.to_owned(), words })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks the monitor: the calls of a script are not requests.
#[test]
fn a_monitor_counts_a_script_once() {
    let redis = Redis::start();
    let monitor = Monitor::of(&redis);
    let mut client = redis.connect();
    let script = "redis.call('SET', KEYS[1], \"it's \\\" \\\" \" .. ARGV[1])";
    client.command(&["EVAL", script, "1", "lock", r#"{"token":"t0ken","index":"members"}"#]);
    client.command(&["get", "lock"]);
    let requests = monitor.requests();
    let names: Vec<&str> = requests.iter().map(|request| request.words[0].as_str()).collect();
    assert_eq!(names, ["EVAL", "GET"]);
    assert_eq!(requests[0].token(), Some("t0ken"));
    assert_eq!(requests[1].client, requests[0].client);
}
