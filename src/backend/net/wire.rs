//! The stream of a connection that a library keeps in a task of its own.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::BoundedStream;

/// How long to wait for the stream of a connection that has failed, and for what the server has sent last.
pub const END: Duration = Duration::from_millis(600);
/// How many of the first bytes from the server are reported.
pub const GREETING: usize = 4;

/// Reports what the server sends first, and returns the stream when the connection has ended.
pub struct Wire {
    stream: Option<BoundedStream>,
    greeted: Option<oneshot::Sender<Vec<u8>>>,
    ended: Option<oneshot::Sender<BoundedStream>>,
}

impl Wire {
    /// Returns what the library reads and writes, what resolves with up to [`GREETING`] first bytes from the server, and what
    /// resolves with the stream when the library has dropped it.
    pub fn over(
        mut stream: BoundedStream,
    ) -> (Wire, oneshot::Receiver<Vec<u8>>, oneshot::Receiver<BoundedStream>) {
        // The library limits what the server may send.
        stream.refill(usize::MAX);
        let (greeted, greeting) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        (Wire { stream: Some(stream), greeted: Some(greeted), ended: Some(ended) }, greeting, end)
    }

    fn stream(&mut self) -> Pin<&mut BoundedStream> {
        Pin::new(self.stream.as_mut().expect("taken only when it is dropped"))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some((stream, ended)) = self.stream.take().zip(self.ended.take()) {
            // An error means that the reason is not needed.
            let _ = ended.send(stream);
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = self.stream().poll_read(context, buffer);
        let read = &buffer.filled()[before..];
        if !read.is_empty()
            && let Some(greeted) = self.greeted.take()
        {
            let _ = greeted.send(read[..read.len().min(GREETING)].to_vec());
        }
        result
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}
