//! A TCP proxy that damages what the server sends: at places and in ways that a seed determines.

use crate::run::random_faults::fault_plan::Rng;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A proxy on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct Fuzzer {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    connections: AtomicUsize,
    damages: AtomicUsize,
    is_closed: AtomicBool,
}

impl Fuzzer {
    /// Starts one in front of a port of this host. Each connection has choices of its own.
    pub fn to(target: u16, seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if theirs.is_closed.load(Ordering::Relaxed) {
                    return;
                }
                let connection = theirs.connections.fetch_add(1, Ordering::Relaxed);
                let draw = Rng::from(seed.wrapping_add(connection as u64));
                if let Ok(server) = TcpStream::connect(("127.0.0.1", target)) {
                    carry(client, server, draw, Arc::clone(&theirs));
                }
            }
        });
        Self { port, shared }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Number of pieces that were damaged so far.
    pub fn damages(&self) -> usize {
        self.shared.damages.load(Ordering::Relaxed)
    }
}

impl Drop for Fuzzer {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn carry(client: TcpStream, server: TcpStream, draw: Rng, shared: Arc<Shared>) {
    let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from, mut to) = (copy(&client), copy(&server));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let _ = answer(&server, &client, draw, &shared);
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    });
}

/// Carries replies: a few as they are, then a third of the pieces is damaged, so that every step of a conversation is
/// reached.
fn answer(
    mut server: &TcpStream,
    mut client: &TcpStream,
    mut draw: Rng,
    shared: &Shared,
) -> std::io::Result<()> {
    let mut buffer = [0; 65536];
    let mut earlier: Vec<u8> = Vec::new();
    // Some conversations have no more than three replies.
    let most = if draw.percent(60) { 2 } else { 10 };
    let unharmed = draw.between(0, most);
    for number in 0.. {
        let count = server.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        let mut piece = buffer[..count].to_vec();
        let is_damaged = number >= unharmed && draw.percent(33);
        let mut is_last = false;
        if is_damaged {
            shared.damages.fetch_add(1, Ordering::Relaxed);
            for _ in 0..draw.between(1, 3) {
                is_last |= damage(&mut piece, &earlier, &mut draw);
            }
        }
        client.write_all(&piece)?;
        if is_last {
            return Ok(());
        }
        earlier = buffer[..count].to_vec();
    }
    Ok(())
}

/// Damages a piece in one of ten ways. Returns whether the connection ends after it.
fn damage(piece: &mut Vec<u8>, earlier: &[u8], draw: &mut Rng) -> bool {
    if piece.is_empty() {
        return false;
    }
    let last = piece.len() - 1;
    let at = draw.between(0, last);
    let end = draw.between(at, last.min(at + 16)) + 1;
    match draw.between(0, 9) {
        0 => piece[at] ^= 1 << draw.between(0, 7),
        1 => piece[at] = *choose(&[0, 1, 0x7f, 0x80, 0xff, b'\r', b'\n', b'-', b'9', b' '], draw),
        // A length or a count.
        2 => {
            let number: u32 =
                *choose(&[0, 1, 0xff, 0xffff, 0x10_0000, 0x7fff_ffff, 0x8000_0000, u32::MAX], draw);
            let bytes = if draw.percent(50) { number.to_be_bytes() } else { number.to_le_bytes() };
            piece.iter_mut().skip(at).zip(bytes).for_each(|(there, byte)| *there = byte);
        }
        // A number in digits.
        3 => {
            let digits = choose(&["0", "-1", "2147483648", "99999999999999999999"], draw);
            piece.splice(at..end, digits.bytes());
        }
        4 => drop(piece.drain(at..end)),
        5 => {
            let span = piece[at..end].to_vec();
            piece.splice(at..at, span);
        }
        6 => {
            let strange: Vec<u8> = (at..end).map(|_| draw.between(0, 255) as u8).collect();
            piece.splice(at..at, strange);
        }
        // It arrives twice.
        7 => piece.extend_from_within(..),
        // Instead of it, the one before arrives again.
        8 => *piece = if earlier.is_empty() { piece.clone() } else { earlier.to_vec() },
        _ => {
            piece.truncate(at);
            return true;
        }
    }
    false
}

fn choose<'a, T>(choices: &'a [T], draw: &mut Rng) -> &'a T {
    &choices[draw.between(0, choices.len() - 1)]
}
