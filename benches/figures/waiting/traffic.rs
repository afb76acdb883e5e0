//! The load on the store, by its own counters.

use std::collections::BTreeMap;
use std::error::Error;
use std::thread::JoinHandle;

use crate::Bench;
use crate::servers::RedisClient;

/// Commands that only clients send. Other commands are also counted when a script calls them.
const CLIENT_COMMANDS: [&str; 9] = [
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

/// Requests and bytes since the start of the server, or in an interval.
#[derive(Clone, Copy)]
pub struct Traffic {
    pub requests: f64,
    pub read: f64,
    pub written: f64,
}

impl Traffic {
    /// Reads the server's counters.
    pub fn total(client: &mut RedisClient) -> Result<Self, Box<dyn Error>> {
        let (commands, bytes) = (info(client, "commandstats")?, info(client, "stats")?);
        let calls = |name: &&str| -> Option<f64> {
            let counts = commands.get(&format!("cmdstat_{name}"))?;
            counts.strip_prefix("calls=")?.split(',').next()?.parse().ok()
        };
        let count = |name: &str| -> Result<f64, Box<dyn Error>> {
            Ok(bytes.get(name).ok_or_else(|| format!("INFO has no {name}"))?.parse()?)
        };
        Ok(Traffic {
            requests: CLIENT_COMMANDS.iter().filter_map(calls).sum(),
            read: count("total_net_input_bytes")?,
            written: count("total_net_output_bytes")?,
        })
    }

    /// Returns the traffic caused by `act`, without that of reading the counters.
    pub fn of(
        bench: &Bench,
        act: impl FnOnce() -> Result<(), Box<dyn Error>>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut client = bench.redis()?.connect()?;
        let readings = [Self::total(&mut client)?, Self::total(&mut client)?];
        act()?;
        Ok(Self::total(&mut client)?.since(readings[1]).since(readings[1].since(readings[0])))
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
    let reply = client.request(&format!("INFO {section}"))?;
    let mut left: usize = reply.strip_prefix('$').ok_or_else(|| format!("INFO: {reply}"))?.parse()?;
    let mut values = BTreeMap::new();
    while left > 0 {
        let line = client.line()?;
        left = left.saturating_sub(line.len() + 2);
        if let Some((name, value)) = line.split_once(':') {
            values.insert(name.to_owned(), value.to_owned());
        }
    }
    client.line()?; // the line break that ends the bulk string
    Ok(values)
}

/// A request of a client.
pub struct Request {
    /// The address of the client.
    pub client: String,
    /// The command.
    pub command: String,
}

/// All requests of clients, as MONITOR shows them; commands called by scripts are left out.
pub struct Requests(JoinHandle<Result<Vec<Request>, String>>);

/// The argument of the ECHO that ends the count.
const END: &str = "no-more-of-these";

impl Requests {
    pub fn watch(bench: &Bench) -> Result<Self, Box<dyn Error>> {
        let mut monitor = bench.redis()?.connect()?;
        monitor.request("MONITOR")?;
        Ok(Requests(std::thread::spawn(move || {
            let mut seen = Vec::new();
            loop {
                let line = monitor.line().map_err(|error| error.to_string())?;
                // `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`
                let Some((front, request)) = line.split_once("] ") else { continue };
                let client = front.rsplit(' ').next().unwrap_or_default();
                let mut words = request.split(' ').map(|word| word.trim_matches('"'));
                let command = words.next().unwrap_or_default().to_lowercase();
                if command == "echo" && words.next() == Some(END) {
                    return Ok(seen);
                }
                if client != "lua" {
                    seen.push(Request { client: client.to_owned(), command });
                }
            }
        })))
    }

    /// Stops counting. Returns all requests except those of this program.
    pub fn end(self, bench: &Bench) -> Result<Vec<Request>, Box<dyn Error>> {
        bench.redis()?.connect()?.request(&format!("ECHO {END}"))?;
        let mut seen = self.0.join().map_err(|_| "the count has failed")??;
        seen.retain(|request| !["zcard", "exists", "info"].contains(&request.command.as_str()));
        Ok(seen)
    }
}
