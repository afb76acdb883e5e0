//! The replies of a server, read frame by frame from the stream of a connection.

use std::io;

use futures_util::FutureExt;
use tokio::io::AsyncReadExt;

use super::BoundedStream;
use super::failure::{broken, unrequested};
use crate::backend::StoreError;

/// How much is read at once.
const CHUNK: usize = 16 << 10;

/// A stream, and what was read from it ahead. If the future of a read is dropped, nothing is lost.
///
/// The error of each read is that the connection is broken.
pub struct FramedStream {
    stream: BoundedStream,
    received: Vec<u8>,
    /// How much of it has been returned.
    returned: usize,
}

impl FramedStream {
    /// Reads the frames of this stream, from which nothing has been read.
    pub fn new(stream: BoundedStream) -> FramedStream {
        FramedStream { stream, received: Vec::new(), returned: 0 }
    }

    /// Returns the stream that the frames are read from.
    pub fn stream(&self) -> &BoundedStream {
        &self.stream
    }

    /// Writes all of these bytes.
    ///
    /// # Errors
    /// The connection is broken. What the server has sent before that can still be read. If the future is dropped, some of
    /// the bytes may have been written.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let Err(error) = self.stream.send(bytes).await else { return Ok(()) };
        // The server may have sent the reason before it closed the connection.
        let _ = self.read().await;
        Err(self.broken(&error).await)
    }

    /// Returns the next frame: a header, and the content whose length follows from it, which is limited there.
    pub async fn frame<const N: usize>(
        &mut self,
        length: impl Fn([u8; N]) -> Result<usize, StoreError>,
    ) -> Result<([u8; N], Vec<u8>), StoreError> {
        loop {
            if let Some((header, rest)) = self.unread().split_first_chunk::<N>() {
                let length = length(*header)?;
                if let Some(content) = rest.get(..length) {
                    let frame = (*header, content.to_vec());
                    self.returned += N + length;
                    return Ok(frame);
                }
            }
            self.fill().await?;
        }
    }

    /// Returns this many bytes, which the caller limits.
    pub async fn exact(&mut self, length: usize) -> Result<Vec<u8>, StoreError> {
        let ([], bytes) = self.frame(|[]: [u8; 0]| Ok(length)).await?;
        Ok(bytes)
    }

    /// Returns the bytes up to this delimiter, with it; `None` if they are more than `limit`.
    pub async fn until(&mut self, delimiter: u8, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
        loop {
            let unread = self.unread();
            let unread = &unread[..unread.len().min(limit)];
            if let Some(end) = unread.iter().position(|byte| *byte == delimiter) {
                let bytes = unread[..=end].to_vec();
                self.returned += bytes.len();
                return Ok(Some(bytes));
            }
            if unread.len() == limit {
                return Ok(None);
            }
            self.fill().await?;
        }
    }

    /// Drops this many bytes. If the future is dropped, some of them are.
    pub async fn skip(&mut self, mut length: usize) -> Result<(), StoreError> {
        loop {
            let skipped = self.unread().len().min(length);
            (self.returned, length) = (self.returned + skipped, length - skipped);
            if length == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    /// Resolves when the server has closed the connection, or has sent something that was not requested.
    pub async fn ended(&mut self) {
        if self.is_drained() {
            let _ = self.read().await;
        }
    }

    /// Checks, before a request, that nothing has come that was not requested: it would be taken for the reply.
    ///
    /// # Errors
    /// Something has, or the connection has ended.
    pub async fn expect_silence(&mut self) -> Result<(), StoreError> {
        if !self.is_drained() {
            return Err(unrequested());
        }
        match self.read().now_or_never() {
            None => Ok(()),
            Some(Ok(())) => Err(unrequested()),
            Some(Err(error)) => Err(self.broken(&error).await),
        }
    }

    /// Returns whether all that was read has been returned.
    pub fn is_drained(&self) -> bool {
        self.unread().is_empty()
    }

    fn unread(&self) -> &[u8] {
        &self.received[self.returned..]
    }

    async fn fill(&mut self) -> Result<(), StoreError> {
        match self.read().await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.broken(&error).await),
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        self.received.drain(..std::mem::take(&mut self.returned));
        if self.received.is_empty() {
            self.received.shrink_to(CHUNK);
        }
        self.stream.refill(CHUNK);
        self.received.reserve(CHUNK);
        match self.stream.read_buf(&mut self.received).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn broken(&mut self, error: &io::Error) -> StoreError {
        self.stream.why_ended().await.unwrap_or_else(|| broken(error))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;
    use crate::backend::net::closed;

    fn pair() -> (FramedStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        (FramedStream::new(BoundedStream::unix(ours)), theirs)
    }

    /// The header is the length of the content.
    fn short([length]: [u8; 1]) -> Result<usize, StoreError> {
        if length < 9 { Ok(length.into()) } else { Err(StoreError::Config("too long".into())) }
    }

    #[tokio::test]
    async fn frames_are_read_from_any_parts_of_the_stream() {
        const SENT: &[u8] = b"\x03one\x00line\n12345rest";
        for size in 1..=SENT.len() {
            let (mut ours, mut theirs) = pair();
            let read = async {
                assert_eq!(ours.frame(short).await, Ok(([3], b"one".to_vec())));
                assert_eq!(ours.frame(short).await, Ok(([0], Vec::new())));
                assert_eq!(ours.until(b'\n', 5).await, Ok(Some(b"line\n".to_vec())));
                assert_eq!(ours.skip(5).await, Ok(()));
                assert_eq!(ours.exact(4).await, Ok(b"rest".to_vec()));
            };
            let write = async {
                for part in SENT.chunks(size) {
                    theirs.write_all(part).await.expect("an open connection");
                    tokio::task::yield_now().await;
                }
            };
            tokio::join!(read, write);
            assert_eq!(ours.expect_silence().await, Ok(()), "{size}");
        }
    }

    #[tokio::test]
    async fn a_frame_is_limited_by_its_header_and_a_line_by_its_length() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"123456").await.expect("an open connection");
        assert_eq!(ours.until(b'\n', 5).await, Ok(None));
        assert_eq!(ours.frame(short).await, Err(StoreError::Config("too long".into())));
    }

    #[tokio::test]
    async fn a_read_that_is_given_up_loses_nothing() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"\x03on").await.expect("an open connection");
        assert_eq!(ours.frame(short).now_or_never(), None);
        theirs.write_all(b"e").await.expect("an open connection");
        assert_eq!(ours.frame(short).await, Ok(([3], b"one".to_vec())));
    }

    #[tokio::test]
    async fn what_was_not_requested_and_the_end_are_noticed_before_a_request() {
        let (mut ours, mut theirs) = pair();
        assert_eq!(ours.expect_silence().await, Ok(()));
        assert_eq!(ours.ended().now_or_never(), None);
        theirs.write_all(b"!").await.expect("an open connection");
        ours.ended().await;
        assert_eq!(ours.expect_silence().await, Err(unrequested()));
        assert_eq!(ours.exact(1).await, Ok(b"!".to_vec()));
        drop(theirs);
        ours.ended().await;
        assert_eq!(ours.expect_silence().await, Err(closed()));
        assert_eq!(ours.exact(1).await, Err(closed()));
    }
}
