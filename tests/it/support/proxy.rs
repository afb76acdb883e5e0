//! A TCP proxy that delays, holds, drops and duplicates, and records what the client sent.

use super::flight::{Flight, Logbook};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// What happens to bytes in one direction.
#[derive(Debug, Default, Clone, Copy)]
struct Road {
    /// They arrive with this delay, in order.
    delay: Duration,
    /// They wait until the connection is healed, as in TCP behind a router that drops packets.
    held: bool,
    /// They are lost forever.
    dropped: bool,
    /// This number of further pieces is lost forever.
    drop_next: usize,
    /// This number of further pieces arrives twice.
    duplicate_next: usize,
}

#[derive(Debug, Default)]
struct State {
    up: Road,
    down: Road,
    refusing: bool,
    closed: bool,
    /// The number of each, and its streams.
    connections: Vec<(usize, TcpStream, TcpStream)>,
    /// The directions of connections in which bytes may still arrive.
    open: usize,
    flights: Vec<Flight>,
    pieces_down: usize,
    pieces_delivered: usize,
    attempts: usize,
    /// After this number of further replies, one is lost with its connection.
    lose_after: Option<usize>,
    /// After this number of further replies, everything is held back until the connection is healed.
    hold_after: Option<usize>,
    /// After this number of further pieces from clients, the connection of the next one is stuck.
    stick_after: Option<usize>,
    /// What the client sends on this connection is held back until it is healed.
    stuck: Option<usize>,
    /// A text in what the server sends, and what it is replaced by.
    renamed: Option<(&'static str, &'static str)>,
    /// The last connection that was stuck, and the number of pieces from the server on it since.
    last_stuck: Option<(usize, usize)>,
}

impl State {
    fn road(&mut self, way: Way) -> &mut Road {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }

    fn close(&mut self) {
        self.close_those(|_| true);
    }

    fn close_those(&mut self, is_meant: impl Fn(usize) -> bool) {
        for (_, client, server) in self.connections.extract_if(.., |(number, ..)| is_meant(*number)) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Whether the reply that has just arrived on this connection is lost.
    fn loses_reply(&mut self, connection: usize) -> bool {
        let Some(others) = &mut self.lose_after else { return false };
        if *others > 0 {
            *others -= 1;
            return false;
        }
        self.lose_after = None;
        self.close_those(|number| number == connection);
        true
    }

    /// Begins to hold replies back if it is time for that.
    fn hold_reply(&mut self) {
        match &mut self.hold_after {
            Some(0) => (self.hold_after, self.down.held) = (None, true),
            Some(others) => *others -= 1,
            None => {}
        }
    }

    /// Sticks this connection, on which a client has sent a piece, if it is time for that.
    fn stick(&mut self, connection: usize) {
        match &mut self.stick_after {
            Some(0) => {
                (self.stick_after, self.stuck, self.last_stuck) =
                    (None, Some(connection), Some((connection, 0)));
            }
            Some(others) => *others -= 1,
            None => {}
        }
    }

    /// Returns a piece in this direction as it is to arrive.
    fn rename(&self, way: Way, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if let (Way::Down, Some((text, other))) = (way, self.renamed)
            && let Some(place) = bytes.windows(text.len()).position(|part| part == text.as_bytes())
        {
            bytes[place..place + text.len()].copy_from_slice(other.as_bytes());
        }
        bytes
    }

    fn is_held(&mut self, way: Way, connection: usize) -> bool {
        self.road(way).held || way == Way::Up && self.stuck == Some(connection)
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, act: impl FnOnce(&mut State)) {
        act(&mut self.lock());
        self.changed.notify_all();
    }
}

/// A proxy on a free port of 127.0.0.1 in front of a server.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts one in front of a port of this host; initially it changes nothing.
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, target, &theirs));
        Self { port, shared }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Delays the bytes in this direction from now on.
    pub fn delay(&self, way: Way, delay: Duration) {
        self.shared.change(|state| state.road(way).delay = delay);
    }

    /// A partition of one direction: connections stay, bytes wait until `heal`.
    pub fn hold(&self, way: Way) {
        self.shared.change(|state| state.road(way).held = true);
    }

    /// A partition of both directions.
    pub fn hold_both(&self) {
        self.hold(Way::Up);
        self.hold(Way::Down);
    }

    /// Loses the bytes in this direction, without a reset.
    pub fn drop_all(&self, way: Way) {
        self.shared.change(|state| state.road(way).dropped = true);
    }

    /// Loses the next reply.
    pub fn drop_next_reply(&self) {
        self.shared.change(|state| state.down.drop_next += 1);
    }

    /// Loses one reply after this number of others, and closes its connection then.
    pub fn lose_reply_after(&self, others: usize) {
        self.shared.change(|state| state.lose_after = Some(others));
    }

    /// Holds the next reply and everything after it, until `heal`.
    pub fn hold_next_reply(&self) {
        self.hold_reply_after(0);
    }

    /// Holds one reply after this number of others, and everything after it, until `heal`.
    pub fn hold_reply_after(&self, others: usize) {
        self.shared.change(|state| state.hold_after = Some(others));
    }

    /// Holds one piece from a client after this number of others, and what follows on its connection, until `heal`.
    pub fn hold_request_after(&self, others: usize) {
        self.shared.change(|state| state.stick_after = Some(others));
    }

    /// Whether a piece from a client is held on its connection.
    pub fn is_stuck(&self) -> bool {
        self.shared.lock().stuck.is_some()
    }

    /// Number of pieces that the server has sent on the connection that was stuck last, since then.
    pub fn replies_to_stuck(&self) -> usize {
        self.shared.lock().last_stuck.map_or(0, |(_, replies)| replies)
    }

    /// Whether replies are held back.
    pub fn is_holding(&self) -> bool {
        self.shared.lock().down.held
    }

    /// Sends the next piece in this direction twice.
    pub fn duplicate_next(&self, way: Way) {
        self.shared.change(|state| state.road(way).duplicate_next += 1);
    }

    /// Replaces a text, in each piece from the server that contains it, by another one of the same length.
    pub fn rename(&self, text: &'static str, other: &'static str) {
        assert_eq!(text.len(), other.len());
        self.shared.change(|state| state.renamed = Some((text, other)));
    }

    /// Closes every connection, and each new one at once.
    pub fn refuse(&self) {
        self.shared.change(|state| state.refusing = true);
        self.close();
    }

    /// Closes every open connection.
    pub fn close(&self) {
        self.shared.lock().close();
    }

    /// Closes the direction to the clients, and goes on carrying what they send.
    pub fn half_close(&self) {
        for (_, client, _) in &self.shared.lock().connections {
            let _ = client.shutdown(Shutdown::Write);
        }
    }

    /// Removes every fault; held bytes arrive.
    pub fn heal(&self) {
        self.shared.change(|state| {
            (state.up, state.down) = (Road::default(), Road::default());
            (state.hold_after, state.stick_after, state.stuck) = (None, None, None);
            state.refusing = false;
        });
    }

    /// What the clients have sent so far.
    pub fn flights(&self) -> Vec<Flight> {
        self.shared.lock().flights.clone()
    }

    /// Clears the record of what the clients sent.
    pub fn forget_flights(&self) {
        self.shared.lock().flights.clear();
    }

    /// Number of connections that were made so far and not closed by the proxy.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// Number of connection attempts so far, including refused ones.
    pub fn attempts(&self) -> usize {
        self.shared.lock().attempts
    }

    /// Number of pieces that the server has sent so far, whether or not they arrived.
    pub fn replies(&self) -> usize {
        self.shared.lock().pieces_down
    }

    /// Whether all connections have ended, so that nothing more of them can arrive.
    pub fn is_quiet(&self) -> bool {
        self.shared.lock().open == 0
    }

    /// Number of pieces from the server that have arrived at a client.
    pub fn delivered_replies(&self) -> usize {
        self.shared.lock().pieces_delivered
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.close();
        self.shared.change(|state| state.closed = true);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn accept(listener: &TcpListener, target: u16, shared: &Arc<Shared>) {
    for (connection, client) in listener.incoming().flatten().enumerate() {
        let mut state = shared.lock();
        if state.closed {
            return;
        }
        state.attempts += 1;
        if state.refusing {
            continue;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        state.connections.push((connection, copy(&client), copy(&server)));
        state.open += 2;
        drop(state);
        carry(Way::Up, connection, copy(&client), copy(&server), shared);
        carry(Way::Down, connection, server, client, shared);
    }
}

/// Carries bytes in one direction: one thread reads and timestamps each piece, one delivers it when it is due.
fn carry(way: Way, connection: usize, from: TcpStream, to: TcpStream, shared: &Arc<Shared>) {
    let (pieces, due) = channel();
    let (reading, writing) = (Arc::clone(shared), Arc::clone(shared));
    std::thread::spawn(move || {
        read(way, connection, from, &pieces, &reading);
        reading.change(|state| state.open -= 1);
    });
    std::thread::spawn(move || deliver(way, connection, to, &due, &writing));
}

fn read(
    way: Way,
    connection: usize,
    mut from: TcpStream,
    pieces: &Sender<(Instant, Vec<u8>)>,
    shared: &Shared,
) {
    let mut buffer = [0; 65536];
    let mut log = Logbook::of(connection);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = &buffer[..count];
        let now = Instant::now();
        let mut state = shared.lock();
        match way {
            Way::Down => {
                state.pieces_down += 1;
                if let Some((_, replies)) =
                    state.last_stuck.as_mut().filter(|(stuck, _)| *stuck == connection)
                {
                    *replies += 1;
                }
                if state.loses_reply(connection) {
                    return;
                }
                state.hold_reply();
            }
            Way::Up => {
                state.stick(connection);
                let answers = state.pieces_down;
                log.add(&mut state.flights, answers, bytes);
            }
        }
        let road = state.road(way);
        let mut copies = 1;
        if road.dropped || road.drop_next > 0 {
            road.drop_next = road.drop_next.saturating_sub(1);
            copies = 0;
        } else if road.duplicate_next > 0 {
            road.duplicate_next -= 1;
            copies = 2;
        }
        let due = now + road.delay;
        let bytes = state.rename(way, bytes);
        drop(state);
        for _ in 0..copies {
            let _ = pieces.send((due, bytes.clone()));
        }
    }
}

fn deliver(
    way: Way,
    connection: usize,
    mut to: TcpStream,
    due: &Receiver<(Instant, Vec<u8>)>,
    shared: &Shared,
) {
    for (due, bytes) in due {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut state = shared.lock();
        while state.is_held(way, connection) && !state.closed {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if way == Way::Down {
            // Before the client can know of it: its reaction comes later.
            let now = Instant::now();
            for flight in state.flights.iter_mut().filter(|flight| flight.connection == connection) {
                flight.answered.get_or_insert(now);
            }
        }
        drop(state);
        if to.write_all(&bytes).is_err() {
            break;
        }
        if way == Way::Down {
            shared.lock().pieces_delivered += 1;
        }
    }
    // The other side has closed its direction: so does the proxy.
    let mut state = shared.lock();
    while state.is_held(way, connection) && !state.closed {
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    drop(state);
    let _ = to.shutdown(Shutdown::Write);
}
