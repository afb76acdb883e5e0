//! An access key.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::wall_micros;
use crate::secret;

/// An access key.
#[derive(Clone)]
pub struct Keys {
    /// Its id, which is no secret.
    pub id: String,
    /// The secret.
    pub(super) secret: String,
    /// The session that it is part of.
    pub(super) session: Option<String>,
    /// When it ends, in seconds since 1970 by the clock of this host.
    pub(super) ends: Option<i64>,
}

impl Keys {
    /// Returns a key without an end. Its secret is registered.
    pub fn new(id: &str, secret: &str, session: Option<&str>) -> Keys {
        secret::keep(secret);
        session.into_iter().for_each(secret::keep);
        let (id, secret, session) = (id.to_owned(), secret.to_owned(), session.map(str::to_owned));
        Keys { id, secret, session, ends: None }
    }

    /// Returns the key that ends at this time (RFC 3339).
    pub(super) fn until(self, time: Option<&str>) -> Keys {
        let ends = time.and_then(|time| time.parse::<Timestamp>().ok());
        Keys { ends: ends.map(Timestamp::as_second), ..self }
    }

    /// Returns how long it is still valid.
    pub(super) fn left(&self) -> Duration {
        let now = Duration::from_micros(wall_micros()).as_secs();
        self.ends.map_or(Duration::MAX, |ends| {
            Duration::from_secs(u64::try_from(ends).unwrap_or_default().saturating_sub(now))
        })
    }
}
