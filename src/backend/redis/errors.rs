//! The meaning of a server's errors.
//!
//! Decisions are made on the code of an error. Redis has no code for a few distinctions; those are read from the text, in
//! this file only: which right is missing (`acl.c` has NOPERM for all of them, and scripts report it as ERR), a wrong
//! password before Redis 6, an unknown command, and a server that is not a node of a cluster.

use redis::ServerError;

use crate::backend::StoreError;
use crate::secret;

/// Where the rights are named.
pub(super) const SEE_DOCTOR: &str = "see dlock doctor, and dlock doctor --policy for the whole rule";

/// Returns the error that a server's error stands for. Codes as in Redis' source and documentation.
pub(super) fn refusal(error: &ServerError, greeted: bool) -> StoreError {
    let (code, message) = code_and_text(error);
    let text = shortened(format!("{code} {message}").trim());
    match code {
        // Redis before 7.2 does not report which permission a script lacks.
        "ERR" if message.contains("The user executing the script can't") => missing_right(message),
        "ERR" if message.starts_with("ACL failure") => missing_right(message),
        // Final: sending the request again would not help.
        "ERR" if message.to_lowercase().starts_with("unknown command 'eval") => {
            StoreError::Config(format!("the server runs no scripts, which dlock cannot do without ({text})"))
        }
        "ERR" if message.starts_with("Unknown") && message.contains("called from") => {
            StoreError::Config(format!(
                "the server lacks a command that dlock cannot do without, which dlock doctor names ({text})"
            ))
        }
        "DENIED" => StoreError::Denied(text),
        "NOAUTH" => {
            StoreError::Denied("a password is needed: set password_file= or REDISCLI_AUTH".to_owned())
        }
        "WRONGPASS" => StoreError::Denied(
            "wrong username or password: see the user in the URL, password_file= and REDISCLI_AUTH"
                .to_owned(),
        ),
        "NOPERM" => missing_right(message),
        // "ERR invalid password" and "ERR AUTH ... without any password configured" of older servers.
        "ERR" if greeted && text.contains("password") => StoreError::Denied(text),
        // Scripts are rejected in these states before anything is executed, and the states are transient.
        "OOM" => StoreError::unreachable(format!("the server is out of memory ({text})")),
        "READONLY" => StoreError::unreachable(format!(
            "the server is a replica, which takes no writes: name its master, which dlock doctor tells ({text})"
        )),
        "LOADING" | "BUSY" | "MASTERDOWN" | "MISCONF" | "NOREPLICAS" | "CLUSTERDOWN" | "TRYAGAIN" => {
            StoreError::unreachable(text)
        }
        "MOVED" | "ASK" | "CROSSSLOT" => StoreError::Config(format!(
            "the server is a node of a Redis Cluster ({text}): use redis-cluster:// (rediss-cluster:// with TLS)"
        )),
        _ => StoreError::unanswered(text),
    }
}

/// Returns the error of a missing right. The server names the command in quotes, but not the key.
fn missing_right(message: &str) -> StoreError {
    let is_command = Lack::in_text(message) == Lack::Command;
    let command = message.split('\'').nth(1).filter(|_| is_command);
    let command = command.map(|command| format!(" to run '{}'", shortened(command))).unwrap_or_default();
    StoreError::Denied(format!("a right is missing{command}: {SEE_DOCTOR}"))
}

/// What a user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// The right to a command.
    Command,
    /// The right to a key or a channel.
    Key,
    /// The command itself, which the server does not have.
    Support,
}

impl Lack {
    /// Returns what was lacking for a command outside of scripts, if that is why it was refused.
    pub(super) fn of(error: &ServerError) -> Option<Lack> {
        match error.code() {
            "NOPERM" => Some(Lack::in_text(error.details().unwrap_or_default())),
            _ => is_unknown_command(error).then_some(Lack::Support),
        }
    }

    /// Returns what the text of a refusal names.
    pub(super) fn in_text(message: &str) -> Lack {
        match message {
            _ if message.contains("Unknown ") => Lack::Support,
            // "no permissions to run the 'get' command"; within a script of Redis before 7.2 "can't run this command".
            _ if message.contains(" run th") => Lack::Command,
            _ => Lack::Key,
        }
    }
}

pub(super) fn is_unknown_command(error: &ServerError) -> bool {
    error.code() == "ERR" && error.details().is_some_and(|details| details.starts_with("unknown command"))
}

/// Whether the server rejects a command because it is not a node of a cluster.
pub(super) fn is_cluster_disabled(error: &ServerError) -> bool {
    error.details().is_some_and(|details| details.contains("cluster support disabled"))
}

/// What a server is that does not hold locks by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DependentRole {
    Replica,
    ClusterNode,
}

impl DependentRole {
    /// Returns the role of a server that sends this error, if the error tells.
    pub(super) fn of(error: &ServerError) -> Option<DependentRole> {
        match code_and_text(error).0 {
            "READONLY" => Some(DependentRole::Replica),
            "MOVED" | "ASK" | "CROSSSLOT" => Some(DependentRole::ClusterNode),
            _ => None,
        }
    }
}

/// Whether a node does not have all the keys of a migrating slot (Redis, `getNodeByQuery` in `cluster.c`; inside a
/// script, `scriptVerifyClusterState` in `script.c`).
pub(super) fn is_resharding(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "TRYAGAIN" || details.contains("non local key") || details.contains("TRYAGAIN")
}

/// Whether a script has to be sent as text.
pub(super) fn is_no_script(error: &ServerError) -> bool {
    // Denied, or not supported: "ERR unknown command 'EVALSHA', with args beginning with: ...".
    let is_about_digests = || {
        let details = error.details().unwrap_or_default().to_lowercase();
        let command = details.split(", with args").next().unwrap_or_default();
        command.contains("'evalsha'") || command.contains("`evalsha`")
    };
    error.code() == "NOSCRIPT" || matches!(error.code(), "NOPERM" | "ERR") && is_about_digests()
}

/// Returns the code and the text of an error. For an error inside a script, the position in the script is left out;
/// before Redis 7 such an error has the code of the script's own failure, and that of the command is in the text.
pub(super) fn code_and_text(error: &ServerError) -> (&str, &str) {
    let details = error.details().unwrap_or_default();
    // A server that does not support AUTH repeats its arguments, including the password.
    let message = details.split(", with args beginning with").next().unwrap_or_default();
    // "OOM command not allowed when used memory > 'maxmemory'. script: DIGEST, on @user_script:1."
    let message = message.split(" script: ").next().unwrap_or_default();
    // "ERR Error running script (call to f_DIGEST): @user_script:1: @user_script: 1: -OOM command not ..."
    let inner = message
        .strip_prefix("Error running script")
        .and_then(|message| message.rsplit_once("@user_script:")?.1.split_once(": "));
    let Some((_, inner)) = inner else { return (error.code(), message) };
    let inner = inner.trim();
    let is_code = |word: &str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    match inner.trim_start_matches('-').split_once(' ') {
        Some((code, message)) if is_code(code) => (code, message),
        _ => (error.code(), inner),
    }
}

/// The error in the server's words, which are untrusted.
pub(super) fn describe(error: &ServerError) -> String {
    let (code, message) = code_and_text(error);
    shortened(format!("{code} {message}").trim())
}

/// The first 200 characters of an untrusted text, without our secrets; it is escaped when it is printed.
pub(super) fn shortened(text: &str) -> String {
    // Before it is cut off: a part of a secret would not be recognized.
    secret::scrubbed(text).chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn meaning(line: &str) -> (StoreError, String) {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => (refusal(&error, false), describe(&error)),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// In the words of Redis 6.0, 7.0 and 8.0 and Valkey 8.1.
    #[test]
    fn errors_inside_scripts_are_recognized_in_the_words_of_every_version() {
        let at = "script: 48151ed257c50958ffdf1db6d88b6a875321c826, on @user_script:1.";
        let in_6 = "ERR Error running script (call to f_48151ed257c50958ffdf1db6d88b6a875321c826): @user_script:1: @user_script: 1: ";
        for denied in [
            format!("{in_6}The user executing the script can't run this command or subcommand"),
            format!("{in_6}The user executing the script can't access at least one of the keys"),
            format!("ERR The user executing the script can't run this command or subcommand {at}"),
            format!("ERR ACL failure in script: User u has no permissions to run the 'hlen' command {at}"),
            format!("ERR ACL failure in script: No permissions to access a key {at}"),
            "NOPERM User u has no permissions to run the 'eval' command".to_owned(),
        ] {
            let (meaning, text) = meaning(&denied);
            assert!(matches!(meaning, StoreError::Denied(_)), "{denied}: {meaning:?}");
            assert!(!text.contains("script:") && !text.contains("call to"), "{text}");
        }
        for (code, message) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("READONLY", "You can't write against a read only replica."),
            ("MISCONF", "Redis is configured to save RDB snapshots"),
        ] {
            for line in [
                format!("{in_6}-{code} {message}  "),
                format!("{code} {message} {at}"),
                format!("{code} {message}"),
            ] {
                let (meaning, text) = meaning(&line);
                assert!(
                    matches!(&meaning, StoreError::Unavailable { maybe_applied: false, .. }),
                    "{line}: {meaning:?}"
                );
                assert_eq!(text, format!("{code} {message}"), "{line}");
            }
        }
        assert_eq!(meaning(&format!("{in_6}ERR syntax error")).1, "ERR syntax error");
        for lacking in [
            format!("{in_6}Unknown Redis command called from Lua script"),
            format!("ERR Unknown Redis command called from script {at}"),
            format!("ERR Unknown command called from script {at}"),
            "ERR unknown command 'EVAL', with args beginning with: 'local' ".to_owned(),
        ] {
            assert!(matches!(meaning(&lacking).0, StoreError::Config(_)), "{lacking}");
        }
    }
}
