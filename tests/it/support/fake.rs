//! A fake server: it replies with hostile bytes, or as a closure determines.

use super::admission::await_admission;
use super::resp;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The replies of a fake server on one connection.
type Script = dyn Fn(&Conversation, TcpStream) + Send + Sync;

/// What a fake server received, over all its connections.
#[derive(Debug, Default)]
pub struct Conversation {
    heard: Mutex<Vec<u8>>,
    commands: Mutex<Vec<Vec<String>>>,
    connections: Mutex<Vec<TcpStream>>,
}

/// A fake server on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct Fake {
    port: u16,
    conversation: Arc<Conversation>,
}

impl Fake {
    /// Reads everything and never replies.
    pub fn silent() -> Self {
        Self::start(|conversation, stream| conversation.listen(stream))
    }

    /// Sends these bytes on each connection at once, then stays silent.
    pub fn saying(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(move |conversation, mut stream| {
            let _ = stream.write_all(&bytes);
            conversation.listen(stream);
        })
    }

    /// Replies to a first request that begins with `request`, and to nothing else.
    pub fn replying_to(request: &'static [u8], reply: &'static [u8]) -> Self {
        Self::start(move |conversation, mut stream| {
            let mut buffer = vec![0; request.len()];
            if stream.read_exact(&mut buffer).is_ok() && buffer == request {
                let _ = stream.write_all(reply);
            }
            conversation.listen(stream);
        })
    }

    /// Sends these bytes after the first request, then closes, as an HTTP server does.
    pub fn answering_once(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(move |conversation, mut stream| {
            let mut buffer = [0; 65536];
            if let Ok(count @ 1..) = stream.read(&mut buffer) {
                lock(&conversation.heard).extend_from_slice(&buffer[..count]);
                let _ = stream.write_all(&bytes);
            }
            let _ = stream.shutdown(Shutdown::Write);
            // What the client has yet to send would otherwise reset the connection, and the reply could be lost.
            conversation.listen(stream);
        })
    }

    /// Sends the next of these replies after each request, then stays silent.
    pub fn in_turns(replies: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Self {
        let replies: Vec<Vec<u8>> = replies.into_iter().map(Into::into).collect();
        Self::start(move |conversation, mut stream| {
            let mut buffer = [0; 65536];
            for reply in &replies {
                let Ok(count @ 1..) = stream.read(&mut buffer) else { return };
                lock(&conversation.heard).extend_from_slice(&buffer[..count]);
                if stream.write_all(reply).is_err() {
                    return;
                }
            }
            conversation.listen(stream);
        })
    }

    /// Sends `first`, then `again` over and over as fast as they are taken.
    pub fn endless(first: impl Into<Vec<u8>>, again: impl Into<Vec<u8>>) -> Self {
        let (first, again) = (first.into(), again.into());
        Self::start(move |_, mut stream| {
            if stream.write_all(&first).is_ok() {
                while stream.write_all(&again).is_ok() {}
            }
        })
    }

    /// Sends `first`, then `again` over and over with a pause before each, as a slow loris does.
    pub fn trickling(first: impl Into<Vec<u8>>, again: impl Into<Vec<u8>>, pause: Duration) -> Self {
        let (first, again) = (first.into(), again.into());
        Self::start(move |_, mut stream| {
            if stream.write_all(&first).is_ok() {
                loop {
                    std::thread::sleep(pause);
                    if stream.write_all(&again).is_err() {
                        return;
                    }
                }
            }
        })
    }

    /// Replies to each command with the bytes that `answer` returns; no bytes close the connection.
    pub fn scripted(answer: impl Fn(&[String]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self::start(move |conversation, mut stream| {
            let mut from = BufReader::new(stream.try_clone().expect("a descriptor"));
            while let Ok(words) = resp::read_command(&mut from) {
                let reply = answer(&words);
                lock(&conversation.commands).push(words);
                let Some(reply) = reply else { break };
                if stream.write_all(&reply).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(Shutdown::Both);
        })
    }

    /// Replies to each message that begins with its length, in four bytes, with the bytes that `answer` returns; it gets the
    /// number of the message on its connection, and what follows the length.
    pub fn framed(answer: impl Fn(usize, &[u8]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(move |_, mut stream| {
            let mut from = BufReader::new(stream.try_clone().expect("a descriptor"));
            for number in 0.. {
                let mut length = [0; 4];
                let mut message = Vec::new();
                let is_whole = from.read_exact(&mut length).and_then(|()| {
                    message.resize(u32::from_be_bytes(length) as usize, 0);
                    from.read_exact(&mut message)
                });
                if is_whole.and_then(|()| stream.write_all(&answer(number, &message))).is_err() {
                    return;
                }
            }
        })
    }

    /// Carries this out on each connection.
    pub fn start(script: impl Fn(&Conversation, TcpStream) + Send + Sync + 'static) -> Self {
        // What a test measures or plants after this is not to wait for its admission.
        await_admission();
        let script: Arc<Script> = Arc::new(script);
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let conversation = Arc::new(Conversation::default());
        let theirs = Arc::clone(&conversation);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                lock(&theirs.connections).push(stream.try_clone().expect("a descriptor"));
                let (script, conversation) = (Arc::clone(&script), Arc::clone(&theirs));
                std::thread::spawn(move || script(&conversation, stream));
            }
        });
        Self { port, conversation }
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Every byte received and read by its script; empty for a scripted server.
    pub fn heard(&self) -> Vec<u8> {
        lock(&self.conversation.heard).clone()
    }

    /// Every command received by a scripted server.
    pub fn commands(&self) -> Vec<Vec<String>> {
        lock(&self.conversation.commands).clone()
    }

    /// Number of accepted connections.
    pub fn connections(&self) -> usize {
        lock(&self.conversation.connections).len()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for stream in lock(&self.conversation.connections).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Conversation {
    fn listen(&self, mut stream: TcpStream) {
        let mut buffer = [0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            lock(&self.heard).extend_from_slice(&buffer[..count]);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
