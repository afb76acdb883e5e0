//! What `dlock doctor` asks of each server that speaks HTTP: it reaches it, perhaps through a proxy, and reports how far the
//! clocks are from each other.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{Client, Method, Route, request};
use crate::backend::StoreError;
use crate::backend::diagnosis::Finding;
use crate::backend::net::reachability::{Server, certificate, plain_text};
use crate::clock::wall_micros;
use crate::duration::show;

/// How far the clock of this host may be from the server's before a warning is given.
const CLOCK_WARNING: Duration = Duration::from_secs(60);

impl Server<'_> {
    /// Connects as a client with this route does, and sends a first request for `path` through the proxy, if there is one.
    ///
    /// # Errors
    /// The finding about what failed. The others have been reported.
    pub async fn open_http(&mut self, route: &Route, path: &str) -> Result<Client, Finding> {
        let Route { address, security, proxy } = route;
        let Some(proxy) = proxy else {
            let client = Client::over(self.open().await?, route).await;
            return client.map_err(|error| self.remedies.refusal(&error));
        };
        let Server { remedies, diagnosis, .. } = *self;
        let remedy = format!("check {proxy}, or list the host in NO_PROXY");
        let refused = |error: StoreError| Finding::refusal("proxy", &error, &remedy);
        diagnosis.begin("proxy");
        let stream = route.open().await.map_err(|error| refused(route.named(error)))?;
        let (is_encrypted, certificate_end) = (stream.is_encrypted(), stream.certificate_end());
        let mut client = Client::over(stream, route).await.map_err(refused)?;
        let request = request(Method::GET, path, &[], "").map_err(refused)?;
        client.send(request).await.map_err(refused)?;
        // It cannot be probed without the proxy.
        route.recognize();
        diagnosis.found(Finding::ok("proxy", format!("{address} is reached through {proxy}")));
        if is_encrypted {
            diagnosis.found(certificate(security, certificate_end));
        }
        // Nothing is known of the way behind the proxy.
        let elsewhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        if let Some(finding) = plain_text(security, Some(elsewhere), remedies) {
            diagnosis.found(finding);
        }
        Ok(client)
    }
}

/// Returns the finding about the clock of this host and that of a `server`, as a reply shows it (`Date`): a warning if they differ
/// by more than a minute. Leases count all the same, but `refused` says what may fail. `more` says what else is known if they agree.
pub fn host_clock(date: Duration, server: &str, refused: &str, more: &str) -> Finding {
    let difference = date.abs_diff(Duration::from_micros(wall_micros()));
    if difference <= CLOCK_WARNING {
        return Finding::ok("clock", format!("this host and the {server} agree to the minute{more}"));
    }
    let shown = show(Duration::from_secs(difference.as_secs()));
    Finding::warning(
        "clock",
        format!("this host's clock is {shown} from the {server}'s"),
        format!("leases count by the {server}'s clock alone, but {refused}"),
        "synchronize the clock of this host (NTP)",
    )
}
