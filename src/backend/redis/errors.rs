//! What a server's errors mean for us.

use redis::ServerError;

use crate::backend::StoreError;

/// What a server's error means for us. Codes as in Redis' source and documentation.
pub(super) fn refusal(error: &ServerError, greeted: bool) -> StoreError {
    let text = describe(error);
    match code(error) {
        "ERR" if text.contains("user executing the script can't run") || text.contains("can't access") => {
            StoreError::Denied(format!("a right is missing ({text})"))
        }
        "DENIED" => StoreError::Denied(text),
        "NOAUTH" => StoreError::Denied(format!("a password is needed ({text})")),
        "WRONGPASS" => StoreError::Denied(format!("wrong username or password ({text})")),
        "NOPERM" => StoreError::Denied(format!("a right is missing ({text})")),
        // "ERR invalid password" and "ERR AUTH ... without any password configured" of older servers.
        "ERR" if greeted && text.contains("password") => StoreError::Denied(text),
        // Scripts are refused in these states before anything is done, and the states pass.
        "OOM" => StoreError::unreachable(format!("the server is out of memory ({text})")),
        "LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "MISCONF" | "NOREPLICAS" | "CLUSTERDOWN"
        | "TRYAGAIN" => StoreError::unreachable(text),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            StoreError::Config(format!("the server is part of a Redis Cluster ({text})"))
        }
        _ => StoreError::unanswered(text),
    }
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

/// The error's code. Before Redis 7 a script's failure has its own, and that of the command is in the text.
fn code(error: &ServerError) -> &str {
    let details = error.details().unwrap_or_default();
    match error.code() {
        "ERR" if details.starts_with("Error running script") => {
            let known = ["NOPERM", "OOM", "READONLY", "MISCONF", "NOREPLICAS", "LOADING"];
            known.into_iter().find(|code| details.contains(*code)).unwrap_or("ERR")
        }
        code => code,
    }
}

/// An error as the server put it; its text is foreign.
pub(super) fn describe(error: &ServerError) -> String {
    // A server that does not know AUTH repeats what it was given, the password too.
    let details =
        error.details().unwrap_or_default().split(", with args beginning with").next().unwrap_or_default();
    shortened(format!("{} {details}", error.code()).trim())
}

/// The first part of a foreign text; whoever prints it escapes it.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}
