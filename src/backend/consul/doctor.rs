//! `dlock doctor`: checks the agent, and tries a scratch lock.

use std::slice::from_ref;
use std::time::Duration;

use serde_json::Value;

use super::agent::{Agent, lock_delay, parsed, unexpected};
use super::location::Recipe;
use super::store::{ConsulStore, contender};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question};
use crate::backend::net::Protocol;
use crate::backend::net::http::Method;
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::backend::race;
use crate::duration::show;
use crate::lock::DEFAULT_TTL;

/// How far the clock of this host may be from that of the agent before a warning is given.
const CLOCK_WARNING: Duration = Duration::from_secs(1);
const REMEDIES: Remedies = Remedies {
    protocol: Protocol::Http,
    port: "check that the name and port are right, that the agent runs and listens there (client_addr, ports), and that no \
           firewall is in between",
    socket: "check that the agent runs and has this socket (addresses.http), and that this user may write to it (unix_sockets)",
    tls: "renew the agent's certificate if it has expired, name its authority by ca_file=, or the name in the certificate by \
          server_name=; for an agent without TLS use consul://",
    client_certificate: "name a certificate by cert_file= and its key by key_file=, of an authority that the agent knows \
                         (verify_incoming)",
    plain_text: "use consuls://, the agent on this host, or a tunnel",
    login: "give a token with the rights that dlock doctor --policy prints: after a colon in the URL, in password_file=, or in \
            CONSUL_HTTP_TOKEN",
    unusable: ("protocol", "use the port of the HTTP API of a Consul agent"),
    unavailable: ("protocol", "check that the agent runs and has a leader, and see its log"),
};

impl ConsulStore {
    /// Checks the agent, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used, or the agent fails during the checks.
    pub(super) async fn examine_agent(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.agent.location.clone();
        let route = &location.route;
        let (addresses, security) = (from_ref(&route.address), &route.security);
        security.credentials.password()?;
        let servers = Servers { addresses, security, remedies: &REMEDIES, fewer: "" };
        let log_in = async |mut server: Server<'_>| {
            let client = server.open_http(route, "/v1/status/leader").await?;
            let mut agent = Agent::with(client, &location);
            let leader = async {
                let reply = agent.succeed(Method::GET, "status/leader", "", String::new()).await?;
                let leader: String = parsed(&reply.body)?;
                route.recognize();
                Ok((agent, leader))
            };
            server.log_in("protocol", leader).await
        };
        let Some((_, (mut agent, leader))) = servers.log_in(diagnosis, log_in).await?.pop() else {
            return Ok(());
        };
        diagnosis.found(Finding::ok("protocol", "the HTTP API of Consul"));
        diagnosis.found(match leader.is_empty() {
            false => Finding::ok("leader", format!("{leader} leads the servers")),
            true => Finding::problem(
                "leader",
                "the servers have no leader",
                "no lock can be taken or kept",
                "start a majority of the servers, and see their logs",
            ),
        });
        itself(&mut agent, diagnosis).await?;
        clock(&agent, diagnosis);
        answers(location.recipe, diagnosis);
        let request = async || agent.succeed(Method::GET, "status/leader", "", String::new()).await.map(drop);
        diagnosis.measure_latency("requests", request).await?;
        let name = race::try_out(|| contender(&location), diagnosis).await?;
        self.agent.forget(&name).await
    }
}

/// Reports what the agent is, if the token may know.
async fn itself(agent: &mut Agent, diagnosis: &Diagnosis) -> Result<(), StoreError> {
    diagnosis.begin("agent");
    let reply = match agent.succeed(Method::GET, "agent/self", "", String::new()).await {
        Err(StoreError::Denied(_)) => {
            diagnosis.found(Finding::warning(
                "agent",
                "the token may not read what the agent is (agent:read)",
                "it is unknown whether it is a client agent, and which version it has",
                "grant agent_prefix \"\" { policy = \"read\" }, see dlock doctor --policy",
            ));
            return Ok(());
        }
        reply => reply?,
    };
    let itself: Value = parsed(&reply.body)?;
    let text = |field: &str| itself["Config"][field].as_str().ok_or_else(unexpected);
    let version = format!("Consul {}, datacenter {}", text("Version")?, text("Datacenter")?);
    diagnosis.found(Finding::ok("version", version));
    diagnosis.found(match itself["Config"]["Server"] == true {
        false => Finding::ok("agent", "a client agent"),
        true => Finding::warning(
            "agent",
            "the agent is one of the servers",
            "the sessions, and so the locks, that were created through it end when it leaves the cluster \
             (hashicorp/consul#20424)",
            "use the client agent of each host, consul://127.0.0.1:8500, where there is one",
        ),
    });
    Ok(())
}

/// Reports how far the clock of this host is from that of the agent.
fn clock(agent: &Agent, diagnosis: &Diagnosis) {
    let (difference, is_ahead) = agent.clock.difference();
    let found = format!(
        "this host's clock is {} the agent's by at least {}",
        if is_ahead { "ahead of" } else { "behind" },
        show(Duration::from_millis(difference.as_millis().try_into().unwrap_or(u64::MAX)))
    );
    diagnosis.found(match difference < CLOCK_WARNING {
        true => Finding::ok("clock", "this host and the agent agree to the second"),
        false => Finding::warning(
            "clock",
            found,
            "dlock counts by the agent's clock, which shows whole seconds: queue positions, --min-hold and --once-per are less \
             exact; holds are not affected",
            "synchronize the clocks of both (NTP)",
        ),
    });
}

fn answers(recipe: Recipe, diagnosis: &Diagnosis) {
    let meanwhile = match recipe {
        Recipe::Lock => {
            "nobody gets the lock before its command is stopped (with a --ttl of more than 60s, until 60s have passed)"
        }
        Recipe::Semaphore => {
            "no other dlock gets its slot before its command is stopped, as far as the clocks of the agents agree, but consul \
             lock -n may get it at once"
        }
    };
    let loss = format!(
        "if the holder's session is ended by hand, or its node is removed from the catalog; then {meanwhile}; or if its key is \
         deleted, or a majority of the servers lose their disks"
    );
    diagnosis.answer(Question::Loss, Answer::new("yes", loss));
    let found = "dlock uses the one agent that the URL names, and all agents pass requests on to the leader";
    diagnosis.answer(Question::OneServer, Answer::new("yes", found));
    let (times, worst) = match recipe {
        Recipe::Lock => (3, DEFAULT_TTL * 2 + lock_delay(DEFAULT_TTL)),
        Recipe::Semaphore => (2, DEFAULT_TTL * 2),
    };
    let clock = format!(
        "the leader's timers end a session, up to twice its --ttl after its last renewal; the lock of a crashed holder is free \
         after {times} times --ttl at most ({} unless set); the queue, --min-hold and --once-per count by the hosts' \
         clocks, kept within 1s of the clock of their agents",
        show(worst)
    );
    diagnosis.answer(Question::LeaseClock, Answer::new("server", clock));
}
