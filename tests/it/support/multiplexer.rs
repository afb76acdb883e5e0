//! A proxy that shares the connections of a MySQL server among its clients, as ProxySQL does: each request goes over the
//! connection that was used last, unless a transaction is open.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

const OK: u8 = 0;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
const IN_TRANSACTION: u16 = 1;
const MORE_RESULTS: u16 = 8;

/// The connections that no client uses now; the one that was used last is at the end.
type Pool = Arc<Mutex<Vec<TcpStream>>>;

/// Starts one in front of a port of this host, for as long as the tests run; returns its port. With `shares`, each
/// request goes over the connection that was used last; otherwise each client has one.
pub fn start(target: u16, shares: bool) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let pool = Pool::default();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || serve(client, target, &pool, shares));
        }
    });
    port
}

/// Logs in with the server's help, then carries requests until the client leaves.
fn serve(mut client: TcpStream, target: u16, pool: &Pool, shares: bool) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut greeting, number) = read(&mut server)?;
    // A number of its own in place of the server's, after the version.
    let thread = greeting.iter().skip(1).position(|byte| *byte == 0).expect("a version") + 2;
    greeting[thread + 3] ^= 0x40;
    let own_number = u32::from_le_bytes(greeting[thread..thread + 4].try_into().expect("four bytes"));
    write(&mut client, number, &greeting)?;
    let (accepted, number) = loop {
        let (answer, number) = read(&mut client)?;
        write(&mut server, number, &answer)?;
        let (reply, number) = read(&mut server)?;
        if reply.first() == Some(&OK) {
            break (reply, number);
        }
        write(&mut client, number, &reply)?;
        if reply.first() == Some(&ERROR) {
            return Ok(());
        }
    };
    let mut own = Some(server);
    if shares {
        put(pool, &mut own);
    }
    write(&mut client, number, &accepted)?;
    loop {
        let (mut request, number) = read(&mut client)?;
        // This very text it answers itself.
        if request.get(1..) == Some(b"SELECT CONNECTION_ID()") {
            request.splice(1.., format!("SELECT {own_number}").into_bytes());
        }
        let mut server = match own.take() {
            Some(server) => server,
            None => lock(pool).pop().expect("a connection for each client"),
        };
        write(&mut server, number, &request)?;
        // The connection is free before the client can send its next request.
        let mut reply = Vec::new();
        let status = carry_reply(&mut server, &mut reply)?;
        own = Some(server);
        if shares && status & IN_TRANSACTION == 0 {
            put(pool, &mut own);
        }
        client.write_all(&reply)?;
    }
}

fn put(pool: &Pool, server: &mut Option<TcpStream>) {
    lock(pool).extend(server.take());
}

fn lock(pool: &Pool) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the status of the server after the last result.
fn carry_reply(server: &mut TcpStream, client: &mut impl Write) -> io::Result<u16> {
    loop {
        let first = carry(server, client)?;
        let status = match first.first() {
            Some(&ERROR) => return Ok(0),
            Some(&OK) => {
                let (_, rest) = number(&first[1..]);
                let (_, rest) = number(rest);
                u16::from_le_bytes([rest[0], rest[1]])
            }
            _ => {
                // Columns and rows, each with an end.
                let mut status = 0;
                for _ in 0..2 {
                    status = loop {
                        let packet = carry(server, client)?;
                        match packet.first() {
                            Some(&ERROR) => return Ok(0),
                            Some(&END) if packet.len() < 9 => {
                                break u16::from_le_bytes([packet[3], packet[4]]);
                            }
                            _ => {}
                        }
                    };
                }
                status
            }
        };
        if status & MORE_RESULTS == 0 {
            return Ok(status);
        }
    }
}

fn carry(server: &mut TcpStream, client: &mut impl Write) -> io::Result<Vec<u8>> {
    let (packet, number) = read(server)?;
    write(client, number, &packet)?;
    Ok(packet)
}

/// A number of variable length, and what follows it.
fn number(bytes: &[u8]) -> (u64, &[u8]) {
    let length = match bytes[0] {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        small => return (small.into(), &bytes[1..]),
    };
    let value = bytes[1..=length].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    (value, &bytes[1 + length..])
}

fn read(from: &mut TcpStream) -> io::Result<(Vec<u8>, u8)> {
    let mut header = [0; 4];
    from.read_exact(&mut header)?;
    let mut packet = vec![0; u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize];
    from.read_exact(&mut packet)?;
    Ok((packet, header[3]))
}

fn write(to: &mut impl Write, number: u8, packet: &[u8]) -> io::Result<()> {
    let mut bytes = u32::try_from(packet.len()).expect("one packet").to_le_bytes()[..3].to_vec();
    bytes.push(number);
    bytes.extend(packet);
    to.write_all(&bytes)
}
