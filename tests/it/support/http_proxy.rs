//! An HTTP proxy in front of one server, whichever server its clients name.

use super::fake::Fake;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// A proxy on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct HttpProxy {
    fake: Fake,
    heads: Arc<Mutex<Vec<String>>>,
}

impl HttpProxy {
    /// Starts one in front of a port of this host.
    pub fn to(target: u16) -> Self {
        Self::start(target, None, |_| true)
    }

    /// Starts one that forwards only the requests whose first line is such a one, and does not reply to the others.
    pub fn forwarding(target: u16, is_forwarded: fn(&str) -> bool) -> Self {
        Self::start(target, None, is_forwarded)
    }

    /// Starts one that requires this value of `Proxy-Authorization`.
    pub fn with_login(target: u16, login: &'static str) -> Self {
        Self::start(target, Some(login), |_| true)
    }

    fn start(target: u16, login: Option<&'static str>, is_forwarded: fn(&str) -> bool) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&heads);
        let fake = Fake::start(move |_, client| {
            let _ = serve(client, (target, login, is_forwarded), &theirs);
        });
        Self { fake, heads }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.fake.port()
    }

    /// The first line and the headers of each request so far.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves the one request of a connection: a proxy need not keep connections.
fn serve(
    mut client: TcpStream,
    (target, login, is_forwarded): (u16, Option<&str>, fn(&str) -> bool),
    heads: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut from = BufReader::new(client.try_clone()?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    heads.lock().unwrap_or_else(PoisonError::into_inner).push(lines.join("\n"));
    let header = |name: &str| {
        let of =
            |line: &String| line.split_once(": ").map(|(of, value)| (of.to_lowercase(), value.to_owned()));
        lines.iter().filter_map(of).find(|(of, _)| of == name).map(|(_, value)| value)
    };
    if login.is_some_and(|login| header("proxy-authorization").as_deref() != Some(login)) {
        client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")?;
        return client.shutdown(Shutdown::Both);
    }
    if !is_forwarded(&lines[0]) {
        return from.read_to_end(&mut Vec::new()).map(drop);
    }
    let mut server = TcpStream::connect(("127.0.0.1", target))?;
    if lines[0].starts_with("CONNECT ") {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        let (mut up, mut down) = (server.try_clone()?, client.try_clone()?);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut up);
            let _ = up.shutdown(Shutdown::Both);
        });
        let _ = std::io::copy(&mut server, &mut down);
    } else {
        let mut body =
            vec![0; header("content-length").map_or(0, |length| length.parse().expect("a length"))];
        from.read_exact(&mut body)?;
        server.write_all(forwarded(&lines).as_bytes())?;
        server.write_all(&body)?;
        let _ = std::io::copy(&mut server, &mut client);
    }
    client.shutdown(Shutdown::Both)
}

/// A request as the server gets it: without its scheme and host, and without the login at the proxy.
fn forwarded(lines: &[String]) -> String {
    let (method, rest) = lines[0].split_once(" http://").expect("a URL");
    let path = &rest[rest.find('/').expect("a path")..];
    let kept = lines[1..].iter().filter(|line| !line.to_lowercase().starts_with("proxy-"));
    let headers: String = kept.map(|line| format!("{line}\r\n")).collect();
    format!("{method} {path}\r\n{headers}Connection: close\r\n\r\n")
}
