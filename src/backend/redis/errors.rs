//! What a server's errors mean for us.

use redis::ServerError;

use crate::backend::StoreError;
use crate::secret;

/// What a server's error means for us. Codes as in Redis' source and documentation.
pub(super) fn refusal(error: &ServerError, greeted: bool) -> StoreError {
    let (code, said) = understood(error);
    let text = shortened(format!("{code} {said}").trim());
    match code {
        // Redis before 7.2 does not say which right it is that a script lacks.
        "ERR" if said.contains("The user executing the script can't") => {
            StoreError::Denied(format!("a right is missing, which dlock doctor names ({text})"))
        }
        "ERR" if said.starts_with("ACL failure") => {
            StoreError::Denied(format!("a right is missing ({text})"))
        }
        // To ask again would not help, whatever comes of it.
        "ERR" if said.to_lowercase().starts_with("unknown command 'eval") => {
            StoreError::Config(format!("the server runs no scripts, which dlock cannot do without ({text})"))
        }
        "ERR" if said.starts_with("Unknown") && said.contains("called from") => StoreError::Config(format!(
            "the server lacks a command that dlock cannot do without, which dlock doctor names ({text})"
        )),
        "DENIED" => StoreError::Denied(text),
        "NOAUTH" => StoreError::Denied(format!("a password is needed ({text})")),
        "WRONGPASS" => StoreError::Denied(format!("wrong username or password ({text})")),
        "NOPERM" => StoreError::Denied(format!("a right is missing ({text})")),
        // "ERR invalid password" and "ERR AUTH ... without any password configured" of older servers.
        "ERR" if greeted && text.contains("password") => StoreError::Denied(text),
        // Scripts are refused in these states before anything is done, and the states pass.
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

/// Whether a node has not, or not yet, or not any more, all the keys of a slot that moves (Redis, `getNodeByQuery` in
/// `cluster.c`; inside a script, `scriptVerifyClusterState` in `script.c`).
pub(super) fn is_resharding(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "TRYAGAIN" || details.contains("non local key") || details.contains("TRYAGAIN")
}

/// Whether a script has to be sent whole.
pub(super) fn is_no_script(error: &ServerError) -> bool {
    // Denied, or not there at all: "ERR unknown command 'EVALSHA', with args beginning with: ...".
    let is_about_digests = || {
        let details = error.details().unwrap_or_default().to_lowercase();
        let command = details.split(", with args").next().unwrap_or_default();
        command.contains("'evalsha'") || command.contains("`evalsha`")
    };
    error.code() == "NOSCRIPT" || matches!(error.code(), "NOPERM" | "ERR") && is_about_digests()
}

/// The code of an error, and what it says. What a script ran into comes with where in the script that was, which nobody
/// needs to know; before Redis 7 it has the code of the script's own failure, and that of the command is in the text.
fn understood(error: &ServerError) -> (&str, &str) {
    let details = error.details().unwrap_or_default();
    // A server that does not know AUTH repeats what it was given, the password too.
    let said = details.split(", with args beginning with").next().unwrap_or_default();
    // "OOM command not allowed when used memory > 'maxmemory'. script: DIGEST, on @user_script:1."
    let said = said.split(" script: ").next().unwrap_or_default();
    // "ERR Error running script (call to f_DIGEST): @user_script:1: @user_script: 1: -OOM command not ..."
    let inner = said
        .strip_prefix("Error running script")
        .and_then(|said| said.rsplit_once("@user_script:")?.1.split_once(": "));
    let Some((_, inner)) = inner else { return (error.code(), said) };
    let inner = inner.trim();
    let is_code = |word: &str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    match inner.trim_start_matches('-').split_once(' ') {
        Some((code, said)) if is_code(code) => (code, said),
        _ => (error.code(), inner),
    }
}

/// An error as the server put it; its text is foreign.
pub(super) fn describe(error: &ServerError) -> String {
    let (code, said) = understood(error);
    shortened(format!("{code} {said}").trim())
}

/// The first part of a foreign text, without our secrets; whoever prints it escapes it.
pub(super) fn shortened(text: &str) -> String {
    // Before it is cut off: a part of a secret would not be known as one.
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

    /// As Redis 6.0, 7.0 and 8.0 and Valkey 8.1 put it.
    #[test]
    fn what_a_script_ran_into_is_understood_whoever_says_it() {
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
        for (code, said) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("READONLY", "You can't write against a read only replica."),
            ("MISCONF", "Redis is configured to save RDB snapshots"),
        ] {
            for line in
                [format!("{in_6}-{code} {said}  "), format!("{code} {said} {at}"), format!("{code} {said}")]
            {
                let (meaning, text) = meaning(&line);
                assert!(
                    matches!(&meaning, StoreError::Unavailable { maybe_applied: false, .. }),
                    "{line}: {meaning:?}"
                );
                assert_eq!(text, format!("{code} {said}"), "{line}");
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
