//! `dlock doctor`: checks the API server, the rights of the credentials, and what the server makes of conditions.

use std::slice::from_ref;
use std::time::Duration;

use super::api::Api;
use super::lease::Lease;
use super::location::probe_name;
use super::store::{Leases, contender};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question};
use crate::backend::ledger::Ledger;
use crate::backend::ledger::dated::doctor::{Conditions, free_after_crash, give_up, held, reserve, try_out};
use crate::backend::ledger::dated::{Change, Dated, Reading, Written};
use crate::backend::ledger::polling::{CLOCK_LAG, at};
use crate::backend::net::Protocol;
use crate::backend::net::http::examination::host_clock;
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::clock::Moment;
use crate::duration::show;
use crate::random;

/// How far the clocks may be from each other that show the time of a write and that of a reply: as [`CLOCK_LAG`] allows.
const CLOCKS: Duration = Duration::from_secs(1);
const REMEDIES: Remedies = Remedies {
    protocol: Protocol::Http,
    port: "check the server of the context (kubectl config view --minify), and that no firewall is in between",
    socket: "Kubernetes has no socket",
    tls: "renew the server's certificate if it has expired, or correct certificate-authority, tls-server-name or the server of the \
          context",
    client_certificate: "correct client-certificate and client-key of the user in the kubeconfig",
    plain_text: "use a server with https:// in the kubeconfig",
    login: "use credentials with the rights that dlock doctor --policy prints",
    unusable: ("leases", "check the namespace, and the server of the context (kubectl config view --minify)"),
    unavailable: (
        "leases",
        "see the state of the API server (kubectl get --raw /readyz?verbose), or its log",
    ),
};
const CONDITIONS: Conditions = Conditions {
    honoured: "resourceVersion is honoured",
    current: "a write that expects the current version fails",
    stale: "a write that expects an old version succeeds",
    anew: "a Lease is created although there is one",
    another: "ask the API server itself: something in between changes or repeats requests",
};

impl Leases {
    /// Checks the server, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// The configuration cannot be used, or the server fails during the checks.
    pub(super) async fn examine_cluster(&self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = &self.location;
        let cluster = location.cluster()?;
        let (addresses, security) = (from_ref(&cluster.route.address), &cluster.route.security);
        let servers = Servers { addresses, security, remedies: &REMEDIES, fewer: "" };
        let log_in = async |mut server: Server<'_>| {
            let http = server.open_http(&cluster.route, "/version").await?;
            let leases = async {
                let mut leases = Leases::of(Api::with(http, location), location);
                leases.read(&probe_name(0)).await?;
                Ok(leases)
            };
            server.log_in("leases", leases).await
        };
        let Some((_, mut leases)) = servers.log_in(diagnosis, log_in).await?.pop() else { return Ok(()) };
        let found = format!("those of the namespace {} can be read", location.namespace);
        diagnosis.found(Finding::ok("leases", found));
        diagnosis.found(Finding::ok("credentials", format!("from {}", cluster.source)));
        answers(diagnosis);
        let Some(number) = reserve(&mut leases, probe_name, diagnosis).await? else { return Ok(()) };
        let tried = leases.try_locks(&probe_name(number), number, diagnosis).await;
        give_up(&mut leases, &probe_name(number)).await;
        tried
    }

    /// Tries conditional writes with a scratch Lease, and then the scratch lock with this number.
    async fn try_locks(&mut self, probe: &str, number: u64, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        diagnosis.begin("conditions");
        let apart = apart(self, probe).await?;
        if !CONDITIONS.check(self, probe, diagnosis).await? {
            return Ok(());
        }
        watch(self, probe, diagnosis).await?;
        clock(self, apart, diagnosis);
        let location = self.location.clone();
        try_out(self, probe, number, || contender(&location), diagnosis).await
    }
}

/// Writes a Lease, and returns how far the time of the write, as the Lease shows it, is from that of the reply.
async fn apart(leases: &mut Leases, key: &str) -> Result<Duration, StoreError> {
    let Reading { found, time, .. } = leases.read(key).await?;
    let (now, version, before, attempt) =
        (at(time), found.version.as_ref(), &Ledger::default(), &random::id());
    // Another holder than before, so that what shows the time changes.
    let ledger = &held(&random::id(), now, Duration::from_secs(1));
    let change = Change { version, before, ledger, now, attempt };
    let sent = Moment::now();
    let written = leases.write(key, &change).await?;
    let took = Moment::now() - sent;
    let date = leases.clock().map(|clock| clock.date).unwrap_or_default();
    let changed = match written {
        Written::Stored(found) => found.version.and_then(|lease| lease.changed),
        Written::Refused(_) => None,
    };
    Ok(match changed {
        Some(changed) if changed > date => changed - date,
        Some(changed) => (date - changed).saturating_sub(took),
        None => Duration::ZERO,
    })
}

/// Reports whether waiters may watch.
async fn watch(leases: &mut Leases, key: &str, diagnosis: &Diagnosis) -> Result<(), StoreError> {
    diagnosis.begin("watch");
    let lease = leases.read(key).await?.found.version;
    let version = lease.as_ref().map(Lease::version).unwrap_or_default();
    diagnosis.found(match Api::new(&leases.location).watch(key, version, 1).await? {
        Ok(_) => Finding::ok("watch", "waiters are notified"),
        Err(reply) => Finding::warning(
            "watch",
            format!("waiters cannot watch: {}", leases.api.failure(&reply).await),
            "a waiter finds a free lock late, when it asks again",
            "grant the verb watch, see dlock doctor --policy",
        ),
    });
    Ok(())
}

/// Reports whether the clock that counts agrees with the one that shows the renewals of other programs, which is this far from
/// it, and with that of this host.
fn clock(leases: &Leases, apart: Duration, diagnosis: &Diagnosis) {
    if apart > CLOCKS {
        diagnosis.found(Finding::problem(
            "clock",
            format!(
                "the time of a write (managedFields) and that of its reply (Date) are {} apart",
                show(Duration::from_secs(apart.as_secs_f64().round() as u64))
            ),
            "a command may run although a controller still has its Lease, or long after that",
            "synchronize the clocks of the API servers, and of proxies in front of them (NTP)",
        ));
        return;
    }
    let refused = "credentials and certificates may seem to have expired";
    diagnosis.found(host_clock(leases.time(), "server", refused, ""));
}

fn answers(diagnosis: &Diagnosis) {
    let loss = "only if the Lease is deleted by hand, or etcd is restored to an earlier time: Kubernetes acknowledges a write when \
                a majority of etcd's members have it";
    diagnosis.answer(Question::Loss, Answer::new("no", loss));
    let found = "all API servers of the cluster read and write the same etcd, and dlock reads the latest state, not their caches";
    diagnosis.answer(Question::OneServer, Answer::new("yes", found));
    let clock = format!(
        "the API server's clock, as its replies show it in whole seconds (Date), with {} for whole seconds and for servers that \
         differ: {}; other programs count by their own clocks",
        show(CLOCK_LAG),
        free_after_crash()
    );
    diagnosis.answer(Question::LeaseClock, Answer::new("server", clock));
}
