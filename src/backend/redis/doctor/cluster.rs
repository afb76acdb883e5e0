//! The checks of a Redis Cluster, from the replies of one of its nodes.

use std::collections::BTreeMap;

use super::super::connection::server_error;
use super::super::errors::describe;
use super::super::nodes::{ranges, slots_command};
use super::super::slot::SLOTS;
use super::rights::{NO_ASKING, NO_NODES};
use super::{Examiner, Info, setting_of};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Finding, no_lock};
use crate::exit::FailureKind;

/// With fewer masters a cluster cannot promote a replica when a master fails (cluster-tutorial).
const FEWEST_MASTERS: usize = 3;

impl Examiner<'_> {
    /// Checks the cluster as a whole. Returns whether the server is a node of a cluster.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn cluster(&mut self) -> Result<bool, StoreError> {
        self.diagnosis.begin("cluster");
        let info = redis::cmd("CLUSTER").arg("INFO").clone();
        let info = self.request(&info).await?;
        let slots = self.connection.exchange_long(&slots_command()).await?;
        self.optional.note("CLUSTER SLOTS", "", NO_NODES, &slots);
        let asking = self.request(&redis::cmd("ASKING")).await?;
        self.optional.note("ASKING", "", NO_ASKING, &asking);
        let setting = redis::cmd("CONFIG").arg("GET").arg("cluster-require-full-coverage").clone();
        let full_coverage = setting_of(&self.request(&setting).await?);
        if let Some(error) = server_error(&info).filter(|error| error.code() != "NOPERM") {
            self.found(Finding::problem(
                "cluster",
                format!("the server is not a node of a Redis Cluster ({})", describe(error)),
                no_lock(FailureKind::Config),
                "use redis:// for one server, redlock:// for several independent servers",
            ));
            return Ok(false);
        }
        let info = Info::of(&info);
        self.found(state(&info, full_coverage.as_deref()));
        if server_error(&slots).is_none() {
            let mut masters = BTreeMap::new();
            for range in ranges(&slots, &self.address) {
                if let [master, replicas @ ..] = range.nodes.as_slice() {
                    masters.insert(master.to_string(), replicas.len());
                }
            }
            self.found(self::masters(&masters));
        }
        Ok(true)
    }
}

/// Checks that all slots are served.
fn state(info: &Info, full_coverage: Option<&str>) -> Finding {
    let covered = info.field("cluster_slots_ok").and_then(|slots| slots.parse::<u64>().ok());
    let (Some(state), Some(covered)) = (info.field("cluster_state"), covered) else {
        return Finding::warning(
            "cluster",
            "the node does not report the state of the cluster",
            "whether all slots are served is unknown",
            "let this user run CLUSTER INFO",
        );
    };
    let nodes = info.field("cluster_known_nodes").unwrap_or("?");
    let found = format!("state {state}, {nodes} nodes, {covered} of {SLOTS} slots are served");
    let coverage = match full_coverage {
        Some("yes") => ", and none is served while any is not (cluster-require-full-coverage)",
        Some("no") => ", and each is served even if others are not (cluster-require-full-coverage no)",
        _ => "",
    };
    match state == "ok" && covered == u64::from(SLOTS) {
        true => Finding::ok("cluster", format!("{found}{coverage}")),
        false => Finding::problem(
            "cluster",
            format!("{found}{coverage}"),
            format!(
                "locks whose slot is not served cannot be acquired or renewed: dlock run ends with {} or {}",
                FailureKind::Unavailable as u8,
                FailureKind::Lost as u8
            ),
            "see CLUSTER NODES for the nodes that failed, and redis-cli --cluster check",
        ),
    }
}

/// Checks the number of masters, and that each has replicas.
fn masters(masters: &BTreeMap<String, usize>) -> Finding {
    let count = masters.len();
    let noun = if count == 1 { "master" } else { "masters" };
    if count < FEWEST_MASTERS {
        return Finding::warning(
            "masters",
            format!("{count} {noun}"),
            "no replica is promoted when a master fails: that needs the votes of a majority of masters",
            "use at least three masters",
        );
    }
    let alone: Vec<&str> =
        masters.iter().filter(|(_, replicas)| **replicas == 0).map(|(master, _)| master.as_str()).collect();
    let least = masters.values().min().copied().unwrap_or(0);
    match alone.as_slice() {
        [] => Finding::ok("masters", format!("{count} {noun}, each with {least} or more replicas")),
        all if all.len() == count => Finding::warning(
            "masters",
            format!("{count} {noun}, none with a replica"),
            "when one fails, its locks can be neither acquired nor renewed until it is back",
            "add a replica to each, and have the systems that the commands write to check DLOCK_FENCING_TOKEN: a fail-over \
             loses the most recent locks",
        ),
        some => Finding::warning(
            "masters",
            format!("{count} {noun}, without a replica: {}", some.join(", ")),
            "when one of these fails, its locks can be neither acquired nor renewed until it is back",
            "add a replica to each",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::diagnosis::Level;

    #[test]
    fn few_masters_and_masters_without_replicas_are_warnings() {
        let level = |replicas: &[usize]| {
            let all = replicas.iter().enumerate().map(|(master, replicas)| (master.to_string(), *replicas));
            masters(&all.collect()).level
        };
        assert_eq!(level(&[1, 2, 1]), Level::Ok);
        assert_eq!(level(&[1, 0, 1]), Level::Warning);
        assert_eq!(level(&[0, 0, 0]), Level::Warning);
        assert_eq!(level(&[1, 1]), Level::Warning);
    }
}
