//! Intermediaries between dlock and a server.

use super::{Findings, doctor};
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Connects each client to the next of some ports of this host; returns its own port.
pub fn balancer(targets: &[u16]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let targets = targets.to_vec();
    std::thread::spawn(move || {
        for (client, target) in listener.incoming().flatten().zip(targets.into_iter().cycle()) {
            let server = TcpStream::connect(("127.0.0.1", target)).unwrap();
            for (mut from, mut to) in
                [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
            {
                std::thread::spawn(move || {
                    let mut buffer = [0; 65536];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        if to.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    port
}

#[test]
fn a_server_with_only_resp2_cannot_push() {
    let redis = Redis::start_with_args(&["--rename-command", "HELLO", "", "--requirepass", "s3cret"]);
    let found = Findings::of(doctor(&Place::new(), &format!("redis://:s3cret@127.0.0.1:{}/0", redis.port())));
    assert_eq!(found.only("notifications", "warning"), "the server, or a proxy before it, speaks only RESP2");
    assert_eq!(found.at("problem"), [""; 0]);
    found.only("lock", "ok");
    let found = Findings::of(doctor(&Place::new(), &format!("{}?protocol=resp2", Redis::start().url())));
    assert!(found.all().len() < 3, "that server is gone: {found:?}");
    let redis = Redis::start();
    let found = Findings::of(doctor(&Place::new(), &format!("{}?protocol=resp2", redis.url())));
    assert_eq!(found.only("notifications", "warning"), "RESP2 was requested (protocol=)");
}

#[test]
fn another_kind_of_server_is_a_problem_and_its_reply_is_escaped() {
    let place = Place::new();
    for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n"] {
        let server = Fake::answering_once(answer);
        let found = Findings::of(doctor(&place, &format!("redis://127.0.0.1:{}/0", server.port())));
        assert_eq!(found.at("problem"), ["protocol"], "{found:?}");
    }
    let server = Fake::scripted(|words| {
        Some(match words[0].as_str() {
            "HELLO" => b"%1\r\n+server\r\n+redis\r\n".to_vec(),
            _ => b"-ERR \x1b]52;c;x\x07 \xe2\x80\xae hostile\r\n".to_vec(),
        })
    });
    let output = doctor(&place, &format!("redis://127.0.0.1:{}/0", server.port())).output();
    assert_eq!(output.exit, Exit::Code(1), "{output:?}");
    assert!(output.stdout.contains("hostile"), "{output:?}");
    assert!(
        !output.stdout.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}'),
        "{:?}",
        output.stdout
    );
}

/// A server that replies to everything with OK is not a Redis.
#[test]
fn a_server_that_accepts_everything_is_not_trusted() {
    let server = Fake::scripted(|words| {
        Some(match words[0].as_str() {
            "HELLO" => b"%1\r\n+server\r\n+redis\r\n".to_vec(),
            "SUBSCRIBE" => b">3\r\n+subscribe\r\n+x\r\n:1\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        })
    });
    let found = Findings::of(doctor(&Place::new(), &format!("redis://127.0.0.1:{}/0", server.port())));
    assert!(found.only("lock", "problem").starts_with("cannot take it: "), "{found:?}");
}
