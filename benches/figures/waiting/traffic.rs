//! What the store has to do, as it counts that itself.

use std::collections::BTreeMap;
use std::error::Error;
use std::thread::JoinHandle;

use crate::Bench;
use crate::servers::RedisClient;

/// Commands that no script calls: what clients ask. The others are counted when scripts call them, too.
const ASKED: [&str; 9] = [
    "eval",
    "evalsha",
    "hello",
    "auth",
    "select",
    "client|tracking",
    "subscribe",
    "unsubscribe",
    "script|load",
];

/// Requests and bytes so far, or in between.
#[derive(Clone, Copy)]
pub struct Traffic {
    pub requests: f64,
    pub read: f64,
    pub written: f64,
}

impl Traffic {
    /// What the server has counted so far.
    pub fn so_far(client: &mut RedisClient) -> Result<Self, Box<dyn Error>> {
        let (commands, bytes) = (info(client, "commandstats")?, info(client, "stats")?);
        let calls = |name: &&str| -> Option<f64> {
            let counts = commands.get(&format!("cmdstat_{name}"))?;
            counts.strip_prefix("calls=")?.split(',').next()?.parse().ok()
        };
        let count = |name: &str| -> Result<f64, Box<dyn Error>> {
            Ok(bytes.get(name).ok_or_else(|| format!("INFO has no {name}"))?.parse()?)
        };
        Ok(Traffic {
            requests: ASKED.iter().filter_map(calls).sum(),
            read: count("total_net_input_bytes")?,
            written: count("total_net_output_bytes")?,
        })
    }

    /// What `act` makes others do; what it takes to look is left out.
    pub fn of(
        bench: &Bench,
        act: impl FnOnce() -> Result<(), Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut client = bench.redis.connect()?;
        let looks = [Self::so_far(&mut client)?, Self::so_far(&mut client)?];
        act()?;
        Ok(Self::so_far(&mut client)?.since(looks[1]).since(looks[1].since(looks[0])))
    }

    fn since(self, before: Self) -> Self {
        Traffic {
            requests: self.requests - before.requests,
            read: self.read - before.read,
            written: self.written - before.written,
        }
    }

    pub fn per(self, count: usize) -> Self {
        let count = count as f64;
        Traffic { requests: self.requests / count, read: self.read / count, written: self.written / count }
    }
}

/// One section of INFO.
fn info(client: &mut RedisClient, section: &str) -> Result<BTreeMap<String, String>, Box<dyn Error>> {
    let reply = client.ask(&format!("INFO {section}"))?;
    let mut left: usize = reply.strip_prefix('$').ok_or_else(|| format!("INFO: {reply}"))?.parse()?;
    let mut values = BTreeMap::new();
    while left > 0 {
        let line = client.line()?;
        left = left.saturating_sub(line.len() + 2);
        if let Some((name, value)) = line.split_once(':') {
            values.insert(name.to_owned(), value.to_owned());
        }
    }
    client.line()?; // what ends the text
    Ok(values)
}

/// A request that a client made.
pub struct Request {
    /// From where.
    pub client: String,
    /// Its first word.
    pub word: String,
}

/// Every request of a client, as MONITOR shows it; what a script calls is not one.
pub struct Requests(JoinHandle<Result<Vec<Request>, String>>);

/// What ends the count, in a request of our own.
const END: &str = "no-more-of-these";

impl Requests {
    pub fn watch(bench: &Bench) -> Result<Self, Box<dyn Error>> {
        let mut monitor = bench.redis.connect()?;
        monitor.ask("MONITOR")?;
        Ok(Requests(std::thread::spawn(move || {
            let mut seen = Vec::new();
            loop {
                let line = monitor.line().map_err(|error| error.to_string())?;
                // `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`
                let Some((front, request)) = line.split_once("] ") else { continue };
                let client = front.rsplit(' ').next().unwrap_or_default();
                let mut words = request.split(' ').map(|word| word.trim_matches('"'));
                let word = words.next().unwrap_or_default().to_lowercase();
                if word == "echo" && words.next() == Some(END) {
                    return Ok(seen);
                }
                if client != "lua" {
                    seen.push(Request { client: client.to_owned(), word });
                }
            }
        })))
    }

    /// All of them, without our own questions.
    pub fn end(self, bench: &Bench) -> Result<Vec<Request>, Box<dyn Error>> {
        bench.redis.connect()?.ask(&format!("ECHO {END}"))?;
        let mut seen = self.0.join().map_err(|_| "the count has failed")??;
        seen.retain(|request| !["zcard", "exists", "info"].contains(&request.word.as_str()));
        Ok(seen)
    }
}
