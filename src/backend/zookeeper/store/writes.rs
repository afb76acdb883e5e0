//! What a claim changes: its own node, that of the hold that it runs in, and the metadata of the lock.

use super::{OwnNode, ZooKeeperStore, lease_for, no_chroot};
use crate::backend::StoreError;
use crate::backend::ledger::entries::{
    Entry, EntryStore, Fencing, Granting, Listing, METADATA, Write, Written,
};
use crate::backend::ledger::{Ledger, Lifetime, Purpose, Watch};
use crate::backend::zookeeper::connection::{Reply, Report};
use crate::backend::zookeeper::errors::Code;
use crate::backend::zookeeper::message::{FAILED_PART, Kind, Malformed, Reader, Request, Stat};
use crate::backend::zookeeper::node::{Node, Stored, version};
use crate::backend::zookeeper::recipe::parse;
use crate::clock::Moment;
use crate::lock::{LockName, Mode};
use crate::random;

/// How often the token of a reader is written anew because another client was faster.
const MAX_CONFLICTS: usize = 100;
/// How often a write is repeated because the server has removed an empty parent meanwhile.
const MAX_ATTEMPTS: usize = 4;
/// The kind of a part of a reply that has no status of the new node.
const OLD_CREATE: i32 = 1;

/// What a write has done to one node.
struct Done {
    /// The path of a node that was created.
    path: Option<String>,
    stat: Option<Stat>,
}

/// The error of one part of a step.
struct Failed {
    part: usize,
    code: Code,
}

impl EntryStore for ZooKeeperStore {
    const FENCING: Fencing = Fencing::Order;

    fn lifetime(&self, asked: Moment) -> Lifetime {
        Lifetime::OfOwner(self.client.lease(asked))
    }

    async fn assumed(&mut self, _: &LockName, purpose: &Purpose) -> Result<Option<Listing>, StoreError> {
        // The length of the session has to be known before anything is decided.
        self.open(lease_for(purpose)).await?;
        if self.own.is_some() || !matches!(purpose, Purpose::Claim(_)) {
            return Ok(None);
        }
        (self.metadata, self.unreadable) = (None, None);
        Ok(Some(self.listing(0, Vec::new())))
    }

    async fn list(&mut self, name: &LockName, purpose: &Purpose) -> Result<Listing, StoreError> {
        self.read_entries(name, purpose).await
    }

    async fn write(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        writes: &[Write],
        _: Granting,
    ) -> Result<Written, StoreError> {
        let paths = self.location().paths(name);
        let id = random::id();
        let parts = writes.iter().map(|write| self.part(name, write, &id)).collect::<Option<Vec<_>>>();
        let Some(mut parts) = parts else { return Ok(Written::Conflict) };
        parts.extend(self.enter(purpose, writes));
        let creates = writes.iter().any(|write| matches!(write, Write::Create { .. }));
        let mut others = Vec::new();
        if creates {
            let session = self.client.session().unwrap_or_default();
            self.own = Some(OwnNode { session, id, name: None, is_first: false, value: None });
            others.push(Request::Children { path: paths.lock.clone(), watch: false });
            others.push(Request::Get { path: paths.metadata, watch: false });
        }
        let is_frozen = self.freeze().is_some();
        let freezes = writes.iter().find_map(|write| match write {
            Write::Swap { order: METADATA, value, .. } => {
                Some(value.freeze().is_some()).filter(|freezes| *freezes != is_frozen)
            }
            _ => None,
        });
        if freezes == Some(true) {
            self.show_freeze(&paths.frozen).await?;
        }
        let (results, replies) = match self.carry_out(&parts, &others).await? {
            Ok(done) => done,
            Err(Failed { part, code }) => {
                self.own.take_if(|_| creates);
                // Who freezes a lock has written the nodes of its waiters.
                self.nodes.clear();
                return match (code, &parts[part]) {
                    (Code::NO_NODE, Request::Create { .. }) => Err(StoreError::unanswered(format!(
                        "{} was removed again each time that it was created",
                        paths.lock
                    ))),
                    (Code::NO_NODE | Code::BAD_VERSION | Code::NODE_EXISTS, _) => Ok(Written::Conflict),
                    (code, _) => Err(code.error(&paths.lock)),
                };
            }
        };
        self.apply(purpose, writes, &results);
        if freezes == Some(false) {
            self.exchange_one(Request::Delete { path: paths.frozen, version: -1 }).await?;
        }
        let revision = replies[0].zxid as u64;
        let [_, children, metadata] = replies.as_slice() else { return Ok(Written::At(revision)) };
        self.take_metadata(name, metadata)?;
        if let Some(unreadable) = self.unreadable {
            return Err(StoreError::Config(format!("{name}: {unreadable}")));
        }
        self.created(&paths.lock, writes, &results, children, revision).await
    }

    async fn remember(&mut self, name: &LockName, _: &Listing, fencing_token: u64) -> Result<(), StoreError> {
        let path = self.location().paths(name).metadata;
        // A later node has a later order anyway; the token of a reader is that of its grant.
        let own = self.own_node().and_then(|own| own.stored.as_ref());
        let is_order = own.is_some_and(|own| own.stat.czxid as u64 == fencing_token);
        for _ in 0..MAX_CONFLICTS {
            let Some(Entry { version, mut value, .. }) = self.metadata.clone() else { return Ok(()) };
            if value.fencing_token >= fencing_token || self.unreadable.is_some() {
                return Ok(());
            }
            value.fencing_token = fencing_token;
            let mut requests = Vec::new();
            if version == 0 {
                let parent = path.rsplit_once('/').map_or("/", |(parent, _)| parent);
                requests.push(container(parent));
            }
            requests.push(swap(path.clone(), version, &value));
            if is_order {
                let requests: Vec<_> = requests.into_iter().map(|one| (one, Report::Never)).collect();
                return self.client.begin(&requests).await;
            }
            requests.push(Request::Get { path: path.clone(), watch: false });
            let replies = self.client.exchange(&requests).await?;
            // If another client was faster, it has stored a token that may be larger.
            let Some(reply) = replies.last() else { return Ok(()) };
            self.take_metadata(name, reply)?;
        }
        Err(StoreError::unanswered(format!("{name}: too many other clients change {path} at the same time")))
    }

    async fn watch(&mut self, name: &LockName, watch: &[Watch], since: u64) -> Result<bool, StoreError> {
        let lock = self.location().paths(name).lock;
        let path = |node: &str| format!("{lock}/{node}");
        // A node cannot have children if it is ephemeral: this is only notified of its removal.
        let removal = |node| (Request::Children { path: path(node), watch: true }, Report::Removal);
        let change = |node| (Request::Get { path: path(node), watch: true }, Report::ChangeAfter(since));
        let mut requests = Vec::new();
        for watch in watch {
            let node = match watch {
                Watch::Entry(order) | Watch::Holder(order) | Watch::Waiter(order) => self.node_of(*order),
                Watch::Freeze => {
                    let path = self.location().paths(name).metadata;
                    requests.push((Request::Get { path, watch: true }, Report::ChangeAfter(since)));
                    continue;
                }
                Watch::Gate(_) => continue,
            };
            requests.extend(node.map(|node| match watch {
                Watch::Entry(_) => removal(node),
                _ => change(node),
            }));
        }
        requests.extend(match &self.held_in {
            Some(node) => Some(change(node)),
            None => self.own_name().map(removal),
        });
        self.client.begin(&requests).await?;
        Ok(true)
    }

    async fn finish(&mut self, purpose: &Purpose) {
        if matches!(purpose, Purpose::Release(_)) && self.own.is_none() && self.held_in.is_none() {
            self.client.close();
        }
    }
}

impl ZooKeeperStore {
    /// Returns the request of a write; `None` if its entry is unknown.
    fn part(&self, name: &LockName, write: &Write, id: &str) -> Option<Request> {
        let paths = self.location().paths(name);
        let path = |order: u64| match order {
            METADATA => Some(paths.metadata.clone()),
            _ => self.node_of(order).map(|node| format!("{}/{node}", paths.lock)),
        };
        Some(match write {
            Write::Create { alone, waiting, .. } => {
                let node = self.location().recipe.node(id, mode_of(waiting));
                let data = alone.as_ref().unwrap_or(waiting).to_json();
                Request::Create {
                    path: format!("{}/{node}", paths.lock),
                    data,
                    kind: Kind::EphemeralSequential,
                }
            }
            Write::Swap { order, version, value, .. } => swap(path(*order)?, *version, value),
            Write::Remove { order, version } => {
                Request::Delete { path: path(*order)?, version: data_version(*version) }
            }
            // Nodes have no leases.
            Write::Extend { order, .. } => Request::Exists { path: path(*order)? },
        })
    }

    /// Carries out these requests in one step, and others after them. Creates the nodes above a new one, which the server
    /// removes when they are empty. Returns the result of each part with all replies, or the part that has failed.
    async fn carry_out(
        &mut self,
        parts: &[Request],
        others: &[Request],
    ) -> Result<Result<(Vec<Done>, Vec<Reply>), Failed>, StoreError> {
        let step = match parts {
            [part] => part.clone(),
            _ => Request::Multi(parts.to_vec()),
        };
        let requests = [&[step], others].concat();
        let mut retries = 1..MAX_ATTEMPTS;
        loop {
            let replies = self.client.exchange(&requests).await?;
            match (results(parts, &replies[0])?, retries.next()) {
                (Ok(results), _) => return Ok(Ok((results, replies))),
                (Err(failed), Some(_)) if failed.code == Code::NO_NODE => match &parts[failed.part] {
                    Request::Create { path, .. } => self.create_parents(path).await?,
                    _ => return Ok(Err(failed)),
                },
                (Err(failed), _) => return Ok(Err(failed)),
            }
        }
    }

    /// Creates the node that shows that a lock is frozen.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    async fn show_freeze(&mut self, path: &str) -> Result<(), StoreError> {
        let create = Request::Create { path: path.to_owned(), data: Vec::new(), kind: Kind::Persistent };
        match self.carry_out(&[create], &[]).await? {
            Ok(_) | Err(Failed { code: Code::NODE_EXISTS, .. }) => Ok(()),
            Err(failed) => Err(failed.code.error(path)),
        }
    }

    /// Notes what was carried out.
    fn apply(&mut self, purpose: &Purpose, writes: &[Write], results: &[Done]) {
        for (write, done) in writes.iter().zip(results) {
            match write {
                Write::Swap { order: METADATA, value, .. } => {
                    let version = done.stat.as_ref().map_or(1, version);
                    self.metadata =
                        Some(Entry { order: METADATA, version, lease_ends: None, value: value.clone() });
                }
                Write::Swap { order, value, .. } => {
                    let node = self.nodes.iter_mut().find(|node| node.order == *order);
                    let Some((node, stat)) = node.zip(done.stat) else { continue };
                    let stored = Stored { stat, value: Some(value.clone()), is_revocation: false };
                    node.stored = Some(Box::new(stored));
                    self.held_in.take_if(|held_in| *held_in == node.name);
                    if value.holders.iter().any(|holder| purpose.is_of(&holder.token)) {
                        self.held_in = Some(node.name.clone());
                    }
                }
                Write::Remove { order, .. } => {
                    let node = self.node_of(*order).map(str::to_owned);
                    if node.as_deref() == self.own_name() {
                        self.own = None;
                    }
                    self.held_in.take_if(|held_in| Some(&*held_in) == node.as_ref());
                }
                Write::Create { .. } | Write::Extend { .. } => {}
            }
        }
        self.restore_own();
    }

    /// Finds out whether the node that was created is the first one, and its order the next fencing token. If not, it gets
    /// the value of a waiter.
    async fn created(
        &mut self,
        lock: &str,
        writes: &[Write],
        results: &[Done],
        children: &Reply,
        revision: u64,
    ) -> Result<Written, StoreError> {
        let created = writes.iter().zip(results).find_map(|(write, done)| match write {
            Write::Create { alone, waiting, .. } => Some((alone, waiting, done.path.as_deref()?, done.stat)),
            _ => None,
        });
        let (alone, waiting, path, stat) = created.ok_or(Malformed)?;
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut node = Node::named(name).ok_or(Malformed)?;
        if let Some(stat) = &stat {
            self.set_clock(stat);
        }
        let owner = self.client.session().unwrap_or_default();
        let zxid = revision.cast_signed();
        let stat = stat.unwrap_or(Stat { czxid: zxid, mzxid: zxid, owner, ..Stat::default() });
        let is_ahead = |other: &String| parse(other).is_some_and(|(number, _)| number < node.number);
        // If the last token is above the orders of nodes, because it was raised or the store has lost data, the next
        // one follows from it.
        let is_next = self.metadata.as_ref().is_none_or(|metadata| metadata.value.fencing_token < revision);
        let is_first = alone.is_some()
            && is_next
            && self.freeze().is_none()
            && !children.reader().texts()?.iter().any(is_ahead);
        let mut stored = Stored { stat, value: Some(waiting.clone()), is_revocation: false };
        match alone {
            Some(alone) if is_first => {
                stored.value = Some(alone.clone());
                self.held_in = Some(node.name.clone());
            }
            Some(_) => {
                let request = swap(format!("{lock}/{}", node.name), version(&stored.stat), waiting);
                self.client.begin(&[(request, Report::Never)]).await?;
                stored.stat.version += 1;
            }
            None => {}
        }
        if let Some(own) = &mut self.own {
            (own.name, own.is_first) = (Some(node.name.clone()), is_first);
        }
        (node.order, node.stored) = (stored.stat.czxid as u64, Some(Box::new(stored)));
        self.nodes.push(node);
        self.restore_own();
        Ok(if is_first { Written::At(revision) } else { Written::Waiting })
    }

    /// Reads the clock of the leader, which only dates changes: by a node that is created and removed in one step.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    pub(super) async fn read_clock(&mut self) -> Result<(), StoreError> {
        let path = self.location().clock_path();
        let create = Request::Create { path: path.clone(), data: Vec::new(), kind: Kind::Persistent };
        // Within a step, only the reply to this has the status of the node.
        let set = Request::Set { path: path.clone(), data: Vec::new(), version: -1 };
        let parts = [create, set, Request::Delete { path: path.clone(), version: -1 }];
        match self.carry_out(&parts, &[]).await? {
            Ok((results, _)) => {
                results.iter().filter_map(|done| done.stat).for_each(|stat| self.set_clock(&stat));
                Ok(())
            }
            Err(Failed { code: Code::NO_NODE, .. }) => Ok(()),
            Err(failed) => Err(failed.code.error(&path)),
        }
    }

    /// Creates the nodes above a path, down from the node that the URL names. The server removes them when they are not
    /// used any more.
    async fn create_parents(&mut self, path: &str) -> Result<(), StoreError> {
        let chroot = self.location().chroot.clone();
        let below = &path[chroot.len() + 1..];
        let ends = below.match_indices('/').map(|(end, _)| chroot.len() + 1 + end);
        let requests: Vec<Request> = ends.map(|end| container(&path[..end])).collect();
        let replies = self.client.exchange(&requests).await?;
        match replies
            .iter()
            .map(|reply| reply.code)
            .find(|code| !matches!(*code, Code::OK | Code::NODE_EXISTS))
        {
            Some(Code::NO_NODE) if !chroot.is_empty() => Err(no_chroot(&chroot)),
            // Another client may have removed one of them meanwhile.
            None | Some(Code::NO_NODE) => Ok(()),
            Some(code) => Err(code.error(path)),
        }
    }
}

/// Returns the mode of the claim that has this entry.
fn mode_of(waiting: &Ledger) -> Mode {
    waiting.waiters.first().map_or(Mode::Exclusive, |waiter| waiter.mode)
}

fn container(path: &str) -> Request {
    Request::Create { path: path.to_owned(), data: Vec::new(), kind: Kind::Container }
}

/// Returns the request to replace a value; one with the version 0 does not exist yet.
pub(super) fn swap(path: String, version: u64, value: &Ledger) -> Request {
    let data = value.to_json();
    match version {
        0 => Request::Create { path, data, kind: Kind::Persistent },
        _ => Request::Set { path, data, version: data_version(version) },
    }
}

fn data_version(version: u64) -> i32 {
    i32::try_from(version.saturating_sub(1)).unwrap_or(i32::MAX)
}

/// Returns what each part of a step has done, or the part that has failed; then nothing was done.
fn results(parts: &[Request], reply: &Reply) -> Result<Result<Vec<Done>, Failed>, StoreError> {
    let mut reader = reply.reader();
    if parts.len() == 1 || reply.code != Code::OK {
        return Ok(match reply.code {
            Code::OK => Ok(vec![result(&parts[0], parts[0].code(), &mut reader)?]),
            code => Err(Failed { part: 0, code }),
        });
    }
    let mut results = Vec::new();
    let mut failed = None;
    let mut part = 0;
    while let Some(kind) = reader.part()? {
        if kind == FAILED_PART {
            let code = Code(reader.int()?);
            // The parts before the one that has failed are reported without an error.
            failed = failed.or((code != Code::OK).then_some(Failed { part, code }));
        } else if let Some(request) = parts.get(part) {
            results.push(result(request, kind, &mut reader)?);
        }
        part += 1;
    }
    Ok(failed.map_or(Ok(results), Err))
}

/// Reads the result of a request in a reply of this kind.
fn result(request: &Request, kind: i32, reader: &mut Reader<'_>) -> Result<Done, StoreError> {
    let path = match request {
        Request::Create { .. } => Some(reader.text()?),
        _ => None,
    };
    let stat = match (request, kind) {
        // Within a step, a server may reply to `create2` as to the older `create`.
        (Request::Delete { .. }, _) | (_, OLD_CREATE) => None,
        _ => Some(reader.stat()?),
    };
    Ok(Done { path, stat })
}
