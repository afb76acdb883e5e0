//! The store of one client: its entries are keys with leases, in the order of their creation.
//!
//! Opened by the root of the store. What always holds: every entry that it creates has a lease; only the
//! metadata of a lock stays.

mod entry;
mod transaction;

use self::transaction::delete;
use super::client::Client;
use super::keys::{self, Keys};
use super::lease::Lease;
use super::listing::Snapshot;
use super::location::Location;
use super::messages::{KeyValue, RangeRequest, TxnRequest};
use super::watch::{self, Events, Watcher};
use crate::backend::admin::Listed;
use crate::backend::diagnosis::Diagnosis;
use crate::backend::ledger::entries::Entries;
use crate::backend::ledger::{Contender, Ledger, Store};
use crate::backend::{Change, Reply, StoreError, TryReply};
use crate::lock::LockName;

/// The number of keys that are read at a time.
const PAGE: i64 = 500;

/// A client of an etcd cluster. If it ends without a release, its keys end with its lease.
pub struct EtcdStore {
    pub(super) client: Client,
    /// Extended by every heartbeat.
    lease: Option<Lease>,
    /// The term of the leader in the last reply; `None` before the first one.
    term: Option<u64>,
    /// The id of the lease that was requested without a reply.
    requested: Option<i64>,
    /// A longer one, for the rest of a minimum hold time. It is never extended.
    rest: Option<Lease>,
    /// The id of that of a freeze which may not have been stored, or is removed.
    of_freeze: Option<i64>,
    /// The entries of a lock that were listed last, with what was written since; `None` after a write that was not
    /// carried out, or that has no reply.
    last: Option<(LockName, Snapshot)>,
    /// The key of the own entry.
    own: Option<Vec<u8>>,
    /// A key has the lease.
    in_use: bool,
    watcher: Option<Watcher>,
}

impl EtcdStore {
    /// Returns a client of a location; does not connect.
    pub(super) fn contender(location: Location) -> Contender<EtcdStore> {
        Contender::new(EtcdStore {
            client: Client::new(location),
            lease: None,
            term: None,
            requested: None,
            rest: None,
            of_freeze: None,
            last: None,
            own: None,
            in_use: false,
            watcher: None,
        })
    }

    fn keys(&self, name: &LockName) -> Keys {
        self.client.location.keys(name)
    }

    /// Watches the own entry, and these keys.
    fn start_watch(&mut self, others: impl Iterator<Item = (Vec<u8>, Events)>, since: u64) {
        let own = self.own.iter().cloned().map(|key| (key, Events::All));
        let requests = own.chain(others).map(|(key, events)| watch::request(key, events, since)).collect();
        self.watcher =
            self.client.channel().map(|channel| Watcher::start(channel, requests, self.own.clone()));
    }

    /// Removes what is stored of a lock besides its entries.
    pub(super) async fn forget(&mut self, name: &LockName) -> Result<(), StoreError> {
        let keys = self.keys(name);
        let success = [keys.metadata(), keys.last(), keys.freeze()].map(delete).to_vec();
        let txn = TxnRequest { success, ..TxnRequest::default() };
        self.client.call(txn).await.map(drop)
    }

    /// Returns the names of the locks whose keys are in a range, and fulfil this with their values.
    async fn names(
        &mut self,
        (mut key, range_end): (Vec<u8>, Vec<u8>),
        is_meant: impl Fn(&[u8], &Ledger) -> bool,
    ) -> Result<Vec<LockName>, StoreError> {
        let mut names = Vec::new();
        loop {
            let request =
                RangeRequest { key, range_end: range_end.clone(), limit: PAGE, ..RangeRequest::default() };
            let reply = self.client.call(request).await?;
            let fits =
                |kv: &&KeyValue| Ledger::parse(&kv.value).is_ok_and(|ledger| is_meant(&kv.key, &ledger));
            let meant = reply.kvs.iter().filter(fits);
            names.extend(meant.filter_map(|kv| keys::name_in(&kv.key, &self.client.location.prefix)));
            names.dedup();
            match reply.kvs.into_iter().next_back().filter(|_| reply.more) {
                Some(last) => key = [last.key, vec![0]].concat(),
                None => return Ok(names),
            }
        }
    }
}

impl Store for EtcdStore {
    type Shape = Entries;

    fn connect(&mut self) -> TryReply<'_, ()> {
        Box::pin(self.client.connect())
    }

    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        let prefix = &self.client.location.prefix;
        match which {
            // A short prefix may have the metadata in the same range, with a freeze that has perhaps ended.
            Listed::InUse => Box::pin(self.names(keys::contenders(prefix), |key, entry| {
                !key.starts_with(keys::METADATA.as_bytes()) && !entry.is_idle()
            })),
            Listed::WithHistory => {
                Box::pin(self.names(keys::documents(prefix), |_, metadata| !metadata.history.is_empty()))
            }
        }
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            let Some(watcher) = &mut self.watcher else { return std::future::pending().await };
            let change = watcher.changed().await;
            if change == Change::Disconnected {
                self.watcher = None;
            }
            change
        })
    }

    fn examine<'a>(&'a mut self, diagnosis: &'a Diagnosis) -> TryReply<'a, ()> {
        Box::pin(self.examine_cluster(diagnosis))
    }

    fn unfrozen(&self) -> Option<&str> {
        Some("other programs that have been waiting since before, such as etcdctl lock")
    }

    fn fails_over(&self) -> bool {
        self.client.location.endpoints.len() > 1
    }
}
