//! The master of a service, as its sentinels know it.

use redis::Value;

use super::answers::{nonsense, text};
use super::connection::Connection;
use super::location::{Address, Location};
use crate::backend::StoreError;
use crate::backend::url::Host;

/// The sentinels of a service.
pub(super) struct Sentinels {
    sentinels: Vec<Host>,
    service: String,
}

impl Sentinels {
    /// Names them; contacts nobody.
    pub(super) fn new(sentinels: Vec<Host>, service: String) -> Sentinels {
        Sentinels { sentinels, service }
    }

    /// The master, as the first of them that answers knows it.
    ///
    /// # Errors
    /// None of them can be asked, or the service is unknown to them.
    pub(super) async fn master(&mut self, location: &Location) -> Result<Address, StoreError> {
        let mut last = StoreError::unreachable("no sentinel");
        for sentinel in &self.sentinels {
            let mut question = redis::cmd("SENTINEL");
            question.arg("get-master-addr-by-name").arg(&self.service);
            let answer = match Connection::open(location, &Address::Tcp(sentinel.clone()), true).await {
                Ok(mut connection) => connection.exchange(&[], &question).await.map(|(_, answer)| answer),
                Err(error) => Err(error),
            };
            match answer {
                Ok(Value::Array(parts)) => {
                    let port = text(parts.get(1)).and_then(|port| port.parse().ok());
                    let (Some(name), Some(port)) = (text(parts.first()), port) else {
                        return Err(nonsense());
                    };
                    return Ok(Address::Tcp(Host { name: name.to_owned(), port: Some(port) }));
                }
                Ok(_) => {
                    let unknown = format!("{sentinel} knows no service '{}'", self.service);
                    return Err(StoreError::Config(unknown));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
