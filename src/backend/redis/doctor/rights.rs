//! The checks of the user's rights, and that a scratch lock can be acquired, renewed and released.

use redis::{Cmd, Value};

use super::super::connection::{CommandReply, RequestOptions, server_error};
use super::super::errors::{Lack, is_unknown_command};
use super::super::keys::{HISTORY, Keys, RESERVED};
use super::super::recipe::Recipe;
use super::super::reply::{LockReply, Outcome, nonsense, read};
use super::super::rights::{MissingRights, user};
use super::super::script::{Operation, ScriptRequest};
use super::super::store::RedisStore;
use super::{Examiner, refusing};
use crate::backend::StoreError;
use crate::backend::diagnosis::Finding;
use crate::backend::race::{self, SCRATCH_LIFE};
use crate::exit::FailureKind;
use crate::lock::{LockName, Token};

/// The digest of `return 1`.
const DIGEST: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

const SHARDED: &str = "SPUBLISH";

/// What dlock does less well without an optional right.
pub(super) const NO_CALLS: &str = "waiters are not notified of their turn, and poll instead";
pub(super) const NO_TRACKING: &str =
    "the removal of a lock is noticed only at the next renewal, and waiters for another program's lock poll";
pub(super) const NO_INFO: &str =
    "whether the server evicts keys, persists them, or is a replica is unknown, also to dlock run";
pub(super) const NO_ASKING: &str = "while a slot moves to another node, its locks cannot be renewed: their commands are \
                                    stopped, or do not run";
pub(super) const NO_NODES: &str = "only the nodes in the URL, and those that they redirect to, are known: when all of \
                                   these are down, a held lock is not renewed";
const NO_DIGESTS: &str = "the text of a script, up to 30 KB, is sent with every request";
const NO_LIST: &str =
    "dlock status lists no locks unless they are named, and entries of dead locks stay in the index";
const NO_HISTORY: &str = "no history of a lock is kept or shown (dlock status --history)";
const NO_DUMP: &str = "dlock break cannot remove another program's lock unless it is a plain string";
const NO_LENGTH: &str = "another program's value under the key of a lock is read whole, however long it is";
const NO_ANNOUNCEMENT: &str = "other programs that wait for a lock are not notified when dlock releases it: they retry \
                               when its lease, or their own timeout, expires";

/// An optional right: a command, the pattern of its key, and what is worse without it.
struct OptionalTrial(&'static str, &'static str, &'static str, Cmd);

/// The optional rights that are missing, and what is worse without them.
#[derive(Debug, Default)]
pub(super) struct OptionalRights {
    missing: MissingRights,
    consequences: Vec<&'static str>,
}

impl OptionalRights {
    /// Records the reply to a command. Returns whether the right is missing.
    pub(super) fn note(
        &mut self,
        command: &'static str,
        pattern: &str,
        consequence: &'static str,
        reply: &Value,
    ) -> bool {
        let is_missing = note(&mut self.missing, command, pattern, reply);
        if is_missing && !self.consequences.contains(&consequence) {
            self.consequences.push(consequence);
        }
        is_missing
    }
}

/// Records the reply to a command. Returns whether the right is missing.
fn note(missing: &mut MissingRights, command: &'static str, pattern: &str, reply: &Value) -> bool {
    // The wrong type, no such script: the user has the right.
    let lack = server_error(reply).and_then(Lack::of);
    lack.into_iter().for_each(|lack| missing.note(lack, command, pattern.to_owned()));
    lack.is_some()
}

impl Examiner<'_> {
    /// Tries each right. Returns whether the server lets this user acquire a lock.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn rights(&mut self, keys: &Keys, token: &Token) -> Result<bool, StoreError> {
        self.diagnosis.begin("rights");
        let scratch = keys.member(token.reveal()) + "?";
        let write = redis::cmd("SET").arg(scratch).arg("x").arg("XX").clone();
        // The declared key needs both kinds of access.
        let eval = redis::cmd("EVAL").arg("return 1").arg(1).arg(&keys.lock).clone();
        let [written, evaluated] =
            <[Value; 2]>::try_from(self.connection.request_all_raw(&[write, eval]).await?)
                .map_err(|_| nonsense())?;
        let state = [&written, &evaluated].into_iter().find_map(|reply| refusing(server_error(reply)?));
        let mut needed = MissingRights::default();
        if !note(&mut needed, "EVAL", &format!("~{}*", self.location.prefix), &evaluated) && state.is_none() {
            let try_rights =
                ScriptRequest::new(Operation::TryRights { tries_rights: true }, keys, token.reveal());
            // Any other reply is left to the scratch lock.
            let reply = self.connection.run_script(&try_rights, RequestOptions::default()).await;
            if let Ok(CommandReply::Value(reply)) = reply
                && let Ok(LockReply { outcome: Outcome::Denied { denied }, .. }) = read(&reply)
            {
                needed = MissingRights::of(&denied, &self.location);
            }
        }
        if needed.is_empty() {
            self.optional_rights(keys).await?;
        }
        self.report_rights(&needed, state.as_ref());
        let is_usable = needed.is_empty() && state.is_none();
        // A replica has been reported already.
        if self.info.field("role") != Some("slave") {
            state.into_iter().for_each(|state| self.found(state));
        }
        Ok(is_usable)
    }

    async fn optional_rights(&mut self, keys: &Keys) -> Result<(), StoreError> {
        self.diagnosis.begin("rights");
        // The history is a string here that expires soon, so that LPUSH cannot create a list without an expiry.
        let (history, life) = (keys.side(HISTORY), SCRATCH_LIFE.as_millis() as u64);
        let first = redis::cmd("SET").arg(&history).arg("x").arg("PX").arg(life).clone();
        let trials = optional_trials(keys, &history);
        let mut commands = vec![first];
        commands.extend(trials.iter().map(|OptionalTrial(.., command)| command.clone()));
        commands.push(redis::cmd("DEL").arg(&history).clone());
        let replies = self.connection.request_all_raw(&commands).await?;
        for (OptionalTrial(command, pattern, consequence, _), reply) in trials.into_iter().zip(&replies[1..])
        {
            // Before Redis 7, no client listens to such a channel either.
            if command == SHARDED && server_error(reply).is_some_and(is_unknown_command) {
                continue;
            }
            self.optional.note(command, pattern, consequence, reply);
        }
        Ok(())
    }

    fn report_rights(&self, needed: &MissingRights, state: Option<&Finding>) {
        let user = user(&self.location);
        let optional = &self.optional.missing;
        if !needed.is_empty() {
            self.found(Finding::problem(
                "rights",
                needed.found(user),
                format!(
                    "locks cannot be acquired, renewed or released: dlock run ends with {}, or with {} if the server does not \
                     know a command",
                    FailureKind::Denied as u8,
                    FailureKind::Config as u8
                ),
                needed.remedy(user),
            ));
        }
        if !optional.is_empty() {
            let consequences = self.optional.consequences.join("; ");
            self.found(Finding::warning("rights", optional.found(user), consequences, optional.remedy(user)));
        }
        if needed.is_empty() && optional.is_empty() && state.is_none() {
            let prefix = &self.location.prefix;
            let found = format!("{user} has all rights needed on {prefix}* and {RESERVED}*");
            self.found(Finding::ok("rights", found));
        }
    }

    /// Tries a scratch lock, then removes its keys.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn lock(
        &mut self,
        store: &RedisStore,
        name: &LockName,
        keys: &Keys,
    ) -> Result<(), StoreError> {
        let old_protocol = store.old_protocol || !self.connection.pushes;
        let client = || {
            let mut client = RedisStore::new(self.location.clone());
            // The name is not used again, so its fencing counter may expire soon.
            (client.counter_ttl, client.old_protocol) = (Some(SCRATCH_LIFE), old_protocol);
            client
        };
        let tried = race::try_out_as(name, client, self.diagnosis).await;
        let removals = [
            redis::cmd("DEL").arg(keys.fencing()).clone(),
            redis::cmd("ZREM").arg(&keys.index).arg(&keys.lock).clone(),
        ];
        self.connection.request_all_raw(&removals).await?;
        tried
    }
}

fn optional_trials(keys: &Keys, history: &str) -> Vec<OptionalTrial> {
    let command = |name: &str, arguments: &[&str]| redis::cmd(name).arg(arguments).clone();
    let index = keys.index.as_str();
    let side = "~dlock#*";
    let mut trials = vec![
        OptionalTrial("EVALSHA", "", NO_DIGESTS, command("EVALSHA", &[DIGEST, "0"])),
        // Scores are times, so no entry has a negative one.
        OptionalTrial("ZREMRANGEBYSCORE", side, NO_LIST, command("ZREMRANGEBYSCORE", &[index, "-inf", "-1"])),
        OptionalTrial("ZSCAN", side, NO_LIST, command("ZSCAN", &[index, "0", "COUNT", "1"])),
        OptionalTrial("LPUSH", side, NO_HISTORY, command("LPUSH", &[history, "x"])),
        OptionalTrial("LTRIM", side, NO_HISTORY, command("LTRIM", &[history, "0", "0"])),
        OptionalTrial("LRANGE", side, NO_HISTORY, command("LRANGE", &[history, "0", "-1"])),
        OptionalTrial("DUMP", "", NO_DUMP, command("DUMP", &[&keys.lock])),
        OptionalTrial("STRLEN", "", NO_LENGTH, command("STRLEN", &[&keys.lock])),
        OptionalTrial("MEMORY USAGE", "", NO_LENGTH, command("MEMORY", &["USAGE", &keys.lock])),
    ];
    if let Some(channel) = &keys.others.channel {
        for name in ["PUBLISH", SHARDED] {
            let publish = command(name, &[channel, "0"]);
            trials.push(OptionalTrial(name, "&redisson_lock__channel:*", NO_ANNOUNCEMENT, publish));
        }
    }
    if let Some(queue) = &keys.others.queue {
        let read = command("LRANGE", &[queue, "0", "0"]);
        trials.push(OptionalTrial("LRANGE", "~redisson_lock_queue:*", NO_ANNOUNCEMENT, read));
    }
    if let Some(signal) = &keys.others.signal {
        let expire = command("PEXPIRE", &[signal, "1000"]);
        trials.push(OptionalTrial("PEXPIRE", "~lock-signal:*", NO_ANNOUNCEMENT, expire));
    }
    trials
}

/// Returns an unused lock name, which is also valid in a cluster.
///
/// # Errors
/// None in practice: the name is valid.
pub(super) fn scratch_name(recipe: Recipe) -> Result<LockName, StoreError> {
    let name = race::scratch_name();
    if recipe != Recipe::PythonRedisLock {
        return Ok(name);
    }
    LockName::new(&format!("{{{name}}}")).map_err(|error| StoreError::unreachable(error.to_string()))
}
