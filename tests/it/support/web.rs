//! A fake web server: it replies to each request as a closure determines.

use super::admission::await_admission;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// A request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The number of the connection.
    pub connection: usize,
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// The status of a reply, further headers, and its body.
pub type Answer = (u16, Vec<(&'static str, String)>, String);

/// A server on a free port of 127.0.0.1, and what it was asked.
#[derive(Debug)]
pub struct Web {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Web {
    /// Starts one. Each connection has a thread of its own; no answer closes the connection.
    pub fn start(answer: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) -> Self {
        await_admission();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().flatten().enumerate() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || serve((connection, &stream), &log, &*answer));
            }
        });
        Self { port, asked }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What it was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(
    (connection, stream): (usize, &TcpStream),
    log: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&Asked) -> Option<Answer> + Sync),
) {
    let mut from = BufReader::new(stream);
    while let Some(asked) = read(&mut from) {
        let asked = Asked { connection, ..asked };
        log.lock().unwrap_or_else(PoisonError::into_inner).push(asked.clone());
        let Some((status, headers, body)) = answer(&asked) else { return };
        let mut head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut to = stream;
        if to.write_all(format!("{head}\r\n{body}").as_bytes()).is_err() {
            return;
        }
    }
}

fn read(from: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    from.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        from.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let mut asked = Asked { connection: 0, method, path, headers, body: Vec::new() };
    let length = asked.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    asked.body = vec![0; length];
    from.read_exact(&mut asked.body).ok()?;
    Some(asked)
}
