//! A reply that goes on for as long as the server likes, in lines: the events of a watch.

use std::pin::Pin;

use futures_util::future::poll_fn;
use hyper::body::{Body, Incoming};
use hyper::http::StatusCode;

use super::{Client, Connection, LONGEST_BODY, Reply, Request};
use crate::backend::StoreError;

/// The lines of a reply, as they arrive.
pub struct Lines {
    body: Incoming,
    /// It ends when this is dropped.
    connection: Option<Connection>,
    /// What has arrived after the last line.
    rest: Vec<u8>,
}

impl Client {
    /// Sends a request, and returns the lines of the reply; the whole reply, if its status is another one than 200. If the
    /// future is dropped, the connection is discarded.
    ///
    /// # Errors
    /// The server cannot be reached, or does not reply properly.
    pub async fn lines(mut self, request: Request) -> Result<Result<Lines, Reply>, StoreError> {
        let result = self.response(request).await;
        let (response, connection, sent) = result.map_err(|error| self.route.named(error))?;
        Ok(match response.status() {
            StatusCode::OK => {
                let (body, connection) = (response.into_body(), Some(connection));
                Ok(Lines { body, connection, rest: Vec::new() })
            }
            _ => Err(connection.rest(response, sent).await?.0),
        })
    }
}

impl Lines {
    /// Waits for the next line, and returns it without its end; `None` at the end of the reply. May be dropped and called again.
    ///
    /// # Errors
    /// The connection is broken, or the line is longer than any other reply may be.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.rest[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.rest.drain(..=searched + end).collect::<Vec<u8>>();
                return Ok(Some(line[..line.len() - 1].to_vec()));
            }
            searched = self.rest.len();
            if searched > LONGEST_BODY {
                let text = format!("the server sends an event of more than {} MiB", LONGEST_BODY >> 20);
                return Err(StoreError::Config(text));
            }
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => self.rest.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => {
                    return Err(match self.connection.take() {
                        Some(connection) => connection.failure(&error).await,
                        None => StoreError::unanswered(error.to_string()),
                    });
                }
            }
        }
    }
}
