//! The rights that dlock needs, as the commands that grant them to a user.

use super::keys::RESERVED;
use super::location::{Location, Topology};
use super::recipe::Recipe;
use crate::backend::location::Policy;

/// What every operation needs; script/lock.lua tries these before a command can start.
const NEEDED: &str = "+eval +time +get +set +exists +type +del +pttl +pexpire +hget +hmget +hgetall +hset +hdel +hexists \
                      +hlen +zadd +zrem +zrange +zrank +zscore +zcard";
/// What makes dlock faster, or lets it show more.
const OPTIONAL: &str = "+evalsha +publish +subscribe +client|tracking +zremrangebyscore +zscan +lpush +ltrim +lrange +dump \
                        +strlen +memory|usage +info";
/// Some clients of Redisson listen to sharded channels.
const OF_REDISSON: &str = "+spublish";
const OF_CLUSTERS: &str = "+asking +cluster|slots";
const OF_SENTINELS: &str = "+sentinel|get-master-addr-by-name +sentinel|master +sentinel|masters +sentinel|replicas +sentinel|ckquorum";

/// Returns the commands that give the user of this location exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let patterns =
        [format!("~{}*", literal(&location.prefix)), format!("~{RESERVED}*"), format!("&{RESERVED}call:*")];
    let mut rules = patterns.map(|pattern| quoted(&pattern)).to_vec();
    rules.extend(location.recipe.patterns().iter().map(|pattern| (*pattern).to_owned()));
    rules.extend([NEEDED.to_owned(), OPTIONAL.to_owned()]);
    let is_redisson = location.recipe == Recipe::Redisson;
    let more = [
        (is_redisson, OF_REDISSON),
        (location.is_cluster(), OF_CLUSTERS),
        (location.database != 0, "+select"),
        (location.wait_replicas > 0, "+wait"),
    ];
    rules.extend(more.into_iter().filter(|(applies, _)| *applies).map(|(_, rule)| rule.to_owned()));
    let user = location.username().unwrap_or("dlock");
    let mut commands = vec![set_user(user, "PASSWORD", &rules.join(" "))];
    let servers = match &location.topology {
        Topology::Server(_) => "the server",
        Topology::Cluster(_) => "every node of the cluster",
        Topology::Redlock(_) => "every node",
        Topology::Sentinel { .. } => match location.sentinel_credentials.username() {
            Some(user) => {
                commands.push(set_user(user, "SENTINEL_PASSWORD", OF_SENTINELS));
                "the master and its replicas, the second command on every sentinel"
            }
            None => "the master and its replicas",
        },
    };
    let old = if is_redisson { "; before Redis 7, leave out +spublish" } else { "" };
    let note = format!(
        "run this as an administrator on {servers}, with the passwords filled in, then ACL SAVE{old}"
    );
    Policy { commands, note }
}

fn set_user(user: &str, password: &str, rules: &str) -> String {
    format!("ACL SETUSER {} reset on >{password} {rules}", quoted(user))
}

/// Escapes what has a meaning in a pattern of keys. A pattern cannot contain spaces (`ACLSetSelector`).
fn literal(prefix: &str) -> String {
    let literal = |c: char| match c {
        '*' | '?' | '[' | ']' | '^' | '\\' => format!("\\{c}"),
        c if c.is_whitespace() => "?".to_owned(),
        c => c.to_string(),
    };
    prefix.chars().map(literal).collect()
}

/// Quotes an argument for the server's client (`sdssplitargs`) where that is needed.
fn quoted(argument: &str) -> String {
    if !argument.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'".contains(c)) {
        return argument.to_owned();
    }
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_ascii_control() => format!("\\x{:02x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", argument.chars().map(escaped).collect::<String>())
}
