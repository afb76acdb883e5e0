//! `dlock doctor`: checks each member, then the cluster, on a scratch lock.

use super::client::Client;
use super::connection::Connection;
use super::errors::described;
use super::location::Location;
use super::messages::{AlarmRequest, MemberListRequest, RangeRequest, StatusRequest, StatusResponse};
use super::store::EtcdStore;
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question, no_lock, one_ttl, version_of};
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::backend::net::{Address, Protocol};
use crate::backend::race;
use crate::exit::FailureKind;

/// Before this version, a stuck leader may revoke leases that are still alive (etcd-io/etcd#15247).
const STUCK_LEADER_FIXED: (u32, u32, u32) = (3, 5, 13);
const NOSPACE: i32 = 1;

const REMEDIES: Remedies = Remedies {
    protocol: Protocol::Etcd,
    port: "check that the name and port are right, that the member runs and listens there (--listen-client-urls), and \
           that no firewall is in between",
    socket: "",
    tls: "renew the member's certificate if it has expired, name its authority by ca_file=, or the name in the certificate \
          by server_name=; for a cluster without TLS use etcd://",
    client_certificate: "name a certificate by cert_file= and its key by key_file=, of an authority that the member knows \
                         (--trusted-ca-file)",
    plain_text: "use etcds://, or a tunnel",
    login: "check the username and password: in the URL, password_file= or ETCDCTL_USER",
    unusable: ("protocol", "use the client port of etcd 3.4 or later"),
    unavailable: ("protocol", "check that the member runs, and see its log"),
};

/// What a member reports about itself.
struct Member {
    address: Address,
    status: StatusResponse,
}

impl Member {
    fn id(&self) -> u64 {
        self.status.header.as_ref().map(|header| header.member_id).unwrap_or_default()
    }
}

impl EtcdStore {
    /// Checks the cluster, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used.
    pub(super) async fn examine_cluster(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = self.client.location.clone();
        // The configured files are read first: no server is contacted if they cannot be used.
        location.security.credentials.password()?;
        let members = Servers {
            addresses: &location.endpoints,
            security: &location.security,
            remedies: &REMEDIES,
            fewer: "one fewer member may fail before locks can no longer be taken or kept",
        };
        let examine = async |server: Server<'_>| examine_member(&location, server, diagnosis).await;
        let members = members.log_in(diagnosis, examine).await?;
        let members: Vec<Member> = members.into_iter().map(|(_, member)| member).collect();
        let Some(first) = members.first() else { return Ok(()) };
        self.client = Client::new(location.only(&first.address));
        diagnosis.begin("quorum");
        self.client.connect().await?;
        let is_old = versions(&members, diagnosis);
        self.agreement(&members, diagnosis).await?;
        self.alarms(diagnosis).await?;
        self.latency(diagnosis).await?;
        diagnosis.answer(Question::Loss, losses(is_old));
        let clock = format!(
            "the leader's, in steps of 1s; the lock of a crashed holder is free {} after its last renewal, or after the last \
             change of the leader; a crashed waiter ahead adds the rest of its own lease",
            one_ttl()
        );
        diagnosis.answer(Question::LeaseClock, Answer::new("server", clock));
        let name = race::try_out(|| EtcdStore::contender(location.clone()), diagnosis).await?;
        self.forget(&name).await
    }

    /// Checks that there is a leader, and that the members agree on it and on the cluster.
    async fn agreement(&mut self, members: &[Member], diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let known = self.client.call(MemberListRequest {}).await?.members;
        let shown = |member: &Member| member.address.to_string();
        let differ = |of: fn(&Member) -> u64| members.iter().any(|member| of(member) != of(&members[0]));
        let leaderless = members.iter().find(|member| member.status.leader == 0);
        let cluster = |member: &Member| {
            member.status.header.as_ref().map(|header| header.cluster_id).unwrap_or_default()
        };
        let removed = members.iter().find(|member| known.iter().all(|known| known.id != member.id()));
        let (found, remedy) = if differ(cluster) {
            ("the members belong to different clusters".to_owned(), "name the members of one cluster")
        } else if let Some(member) = removed {
            let found = format!("{} is no longer a member of the cluster", shown(member));
            (found, "stop it, or add it again with empty data")
        } else if let Some(member) = leaderless {
            (format!("{} has no leader", shown(member)), "start the other members, and see their logs")
        } else if differ(|member| member.status.leader) {
            let found = "the members do not agree on the leader".to_owned();
            (found, "run dlock doctor again; if it persists, check the network between the members")
        } else {
            let found = format!("{} of {} members have the same leader", members.len(), known.len());
            diagnosis.found(Finding::ok("quorum", found));
            if known.len() == 1 {
                diagnosis.found(Finding::one_server());
            }
            let found = "each connection uses one member, and all members return the same data";
            diagnosis.answer(Question::OneServer, Answer::new("yes", found));
            return Ok(());
        };
        diagnosis.answer(Question::OneServer, Answer::new("no", &found));
        let consequence =
            "a lock taken through one member may not be visible through another, or no lock can be taken";
        diagnosis.found(Finding::problem("quorum", found, consequence, remedy));
        Ok(())
    }

    async fn alarms(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        diagnosis.begin("alarms");
        let alarms = self.client.call(AlarmRequest {}).await?.alarms;
        diagnosis.found(match alarms.first() {
            None => Finding::ok("alarms", "none is active"),
            Some(alarm) if alarm.alarm == NOSPACE => Finding::problem(
                "alarms",
                "NOSPACE: the database has reached its quota",
                format!("held locks can be renewed and released, but {}", no_lock(FailureKind::Unavailable)),
                "compact and defragment it (etcdctl compact, defrag) or raise --quota-backend-bytes, then run etcdctl \
                 alarm disarm",
            ),
            Some(_) => Finding::problem(
                "alarms",
                "CORRUPT: the data of a member differs from that of the others",
                format!("{}, and locks may be lost", no_lock(FailureKind::Unavailable)),
                "replace that member, then run etcdctl alarm disarm",
            ),
        });
        Ok(())
    }

    async fn latency(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let (key, _) = super::keys::contenders(&self.client.location.prefix);
        let read = RangeRequest { key, ..RangeRequest::default() };
        diagnosis.measure_latency("reads", async || self.client.call(read.clone()).await.map(drop)).await
    }
}

/// Connects to a member, and reads what it reports about itself.
async fn examine_member(
    location: &Location,
    mut server: Server<'_>,
    diagnosis: &Diagnosis,
) -> Result<Member, Finding> {
    let stream = server.open().await?;
    let address = server.address;
    let begin = async {
        let mut connection = Connection::over(stream, address).await?;
        connection.greeted().await?;
        Ok(connection)
    };
    let connection = server.log_in("authentication", begin).await?;
    let refused = |error: StoreError| REMEDIES.refusal(&error);
    let mut client = Client::new(location.only(address));
    client.begin(connection).await.map_err(refused)?;
    let user = location.security.credentials.username();
    let user = user.map_or("no user".to_owned(), |user| format!("user {user}"));
    diagnosis.found(Finding::ok("authentication", user));
    let reply = client.with(async |channel| Ok(channel.call(StatusRequest {}).await)).await;
    match reply.map_err(refused)? {
        Ok(status) => Ok(Member { address: address.clone(), status }),
        Err(status) if status.code() == tonic::Code::Unavailable => Err(Finding::problem(
            "quorum",
            described(&status),
            format!(
                "{}; running commands are stopped before their leases end",
                no_lock(FailureKind::Unavailable)
            ),
            "start the other members, and see their logs",
        )),
        Err(status) => Err(refused(super::errors::meaning(&status))),
    }
}

/// Reports the versions, and returns whether one of them may lose locks.
fn versions(members: &[Member], diagnosis: &Diagnosis) -> bool {
    let oldest =
        members.iter().map(|member| member.status.version.as_str()).min_by_key(|text| version_of(text));
    let oldest = oldest.unwrap_or_default();
    let is_old = version_of(oldest) < STUCK_LEADER_FIXED;
    diagnosis.found(match is_old {
        false => Finding::ok("version", format!("etcd {oldest}")),
        true => Finding::warning(
            "version",
            format!("etcd {oldest}"),
            "a stuck leader may revoke leases that are still alive: commands are stopped, and others may start before that",
            "upgrade to 3.5.13 or later",
        ),
    });
    is_old
}

fn losses(is_old: bool) -> Answer {
    match is_old {
        true => Answer::new("yes", "by a stuck leader (fixed in 3.5.13)"),
        false => Answer::new(
            "no",
            "only if its key or lease is removed by hand, or a majority of the members loses its disks",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        assert!(version_of("3.4.23") < STUCK_LEADER_FIXED && version_of("3.5.9") < STUCK_LEADER_FIXED);
        assert!(version_of("3.5.13") >= STUCK_LEADER_FIXED && version_of("3.6.0-rc.1") >= STUCK_LEADER_FIXED);
    }
}
