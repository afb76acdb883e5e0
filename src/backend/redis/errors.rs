//! What a server's errors mean for us.

use redis::ServerError;

use crate::backend::StoreError;

/// What a server's error means for us. Codes as in Redis' source and documentation.
pub(super) fn refusal(error: &ServerError, greeted: bool) -> StoreError {
    let text = describe(error);
    match error.code() {
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

/// An error as the server put it; its text is foreign.
pub(super) fn describe(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    shortened(format!("{} {details}", error.code()).trim())
}

/// The first part of a foreign text; whoever prints it escapes it.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}
