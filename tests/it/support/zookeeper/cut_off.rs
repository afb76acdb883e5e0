//! A server that loses the others without noticing it.

use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// The operations that only a majority carries out: create, delete, setData, setACL, create2, multi, createContainer.
const WRITES: [i32; 7] = [1, 2, 5, 7, 14, 15, 19];

#[derive(Debug, Default)]
struct Shared {
    is_cut_off: AtomicBool,
    /// Since then.
    sessions: AtomicUsize,
    connections: Mutex<Vec<TcpStream>>,
}

/// A proxy in front of a server. Once it is cut off, it is like a leader that was replaced and does not know it yet: it
/// answers pings, reads and `sync`, and continues sessions, but commits nothing. What a client sends after a write waits.
#[derive(Debug)]
pub struct CutOff {
    port: u16,
    shared: Arc<Shared>,
}

impl CutOff {
    /// Starts one, which is not cut off.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let all = || Ok::<_, std::io::Error>([client.try_clone()?, server.try_clone()?]);
                let Ok(both) = all() else { continue };
                theirs.connections.lock().unwrap_or_else(PoisonError::into_inner).extend(both);
                if theirs.is_cut_off.load(SeqCst) {
                    theirs.sessions.fetch_add(1, SeqCst);
                }
                carry(client, server, &theirs);
            }
        });
        Self { port, shared }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("zookeeper://127.0.0.1:{}", self.port)
    }

    /// Loses the majority.
    pub fn cut_off(&self) {
        self.shared.is_cut_off.store(true, SeqCst);
    }

    /// How many sessions were begun or continued since.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.load(SeqCst)
    }

    /// Closes every connection.
    pub fn close(&self) {
        for stream in self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        self.close();
    }
}

fn carry(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    let (Ok(mut from), Ok(mut to)) = (server.try_clone(), client.try_clone()) else { return };
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let _ = requests(&client, &server, &shared);
        let _ = server.shutdown(Shutdown::Both);
    });
}

/// Carries what a client sends, until that has to wait.
fn requests(mut client: &TcpStream, mut server: &TcpStream, shared: &Shared) -> Result<()> {
    let mut is_first = true;
    loop {
        let mut length = [0; 4];
        client.read_exact(&mut length)?;
        let mut message = vec![0; u32::from_be_bytes(length) as usize];
        client.read_exact(&mut message)?;
        // The first one begins the session, and has no operation.
        let operation = message[4..8].try_into().map(i32::from_be_bytes).expect("four bytes");
        let is_write = !std::mem::take(&mut is_first) && WRITES.contains(&operation);
        if is_write && shared.is_cut_off.load(SeqCst) {
            std::io::copy(&mut client, &mut std::io::sink())?;
            return Ok(());
        }
        server.write_all(&[&length[..], &message].concat())?;
    }
}
