//! A TCP proxy in front of a Redis that carries every request and every reply, and drops the pushes of the server.

use super::resp::{self, Value};
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    swallowed: Vec<Vec<Value>>,
    connections: Vec<TcpStream>,
    closed: bool,
}

/// A proxy on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct PushFilter {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl PushFilter {
    /// Starts one in front of a port of this host.
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(Mutex::new(State::default()));
        let theirs = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if lock(&theirs).closed {
                    return;
                }
                if let Ok(server) = TcpStream::connect(("127.0.0.1", target)) {
                    carry(client, server, &theirs);
                }
            }
        });
        Self { port, state }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The dropped messages.
    pub fn dropped_messages(&self) -> Vec<String> {
        let text = |value: &Value| matches!(value, Value::Text(_)).then(|| value.text());
        let state = lock(&self.state);
        let messages = state.swallowed.iter().filter(|push| push[0] == Value::Text("message".into()));
        messages.filter_map(|push| push.last().and_then(text)).collect()
    }

    /// Closes every open connection.
    pub fn close(&self) {
        for connection in lock(&self.state).connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for PushFilter {
    fn drop(&mut self) {
        lock(&self.state).closed = true;
        self.close();
        // Wakes the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn carry(client: TcpStream, server: TcpStream, state: &Arc<Mutex<State>>) {
    let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    lock(state).connections.extend([copy(&client), copy(&server)]);
    let (mut from, mut to) = (copy(&client), copy(&server));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let state = Arc::clone(state);
    std::thread::spawn(move || {
        let _ = answer(server, &client, &state);
        let _ = client.shutdown(Shutdown::Both);
    });
}

/// Carries replies. The reply to SUBSCRIBE has the form of a push.
fn answer(server: TcpStream, mut client: &TcpStream, state: &Mutex<State>) -> Result<()> {
    let mut from = Tap { inner: BufReader::new(server), taken: Vec::new() };
    loop {
        from.taken.clear();
        let value = resp::read_value(&mut from)?;
        match value {
            Value::List(push) if from.taken[0] == b'>' && push[0] != Value::Text("subscribe".into()) => {
                lock(state).swallowed.push(push);
            }
            _ => client.write_all(&from.taken)?,
        }
    }
}

/// Records the bytes that were read through it.
struct Tap<R> {
    inner: R,
    taken: Vec<u8>,
}

impl<R: BufRead> Read for Tap<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Tap<R> {
    fn fill_buf(&mut self) -> Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        if let Ok(bytes) = self.inner.fill_buf() {
            self.taken.extend_from_slice(&bytes[..count]);
        }
        self.inner.consume(count);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks the filter: replies arrive, messages do not.
#[test]
fn a_muffler_swallows_messages_and_nothing_else() {
    let redis = super::redis::Redis::start();
    let muffler = PushFilter::to(redis.port());
    let mut client = super::redis::Connection::to(muffler.port()).unwrap();
    client.command(&["HELLO", "3"]);
    client.command(&["SUBSCRIBE", "c"]);
    assert_eq!(redis.command(&["PUBLISH", "c", "word"]), Value::Int(1));
    assert_eq!(client.command(&["PING"]), Value::Text("PONG".into()));
    assert_eq!(muffler.dropped_messages(), ["word"]);
}
