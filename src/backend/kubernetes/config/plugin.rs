//! Plug-ins for credentials: programs that print an `ExecCredential`
//! (<https://kubernetes.io/docs/reference/config-api/client-authentication.v1/>).

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::kubeconfig::Part;
use crate::backend::StoreError;
use crate::backend::net::http::shown;
use crate::backend::net::{Pem, closed, output_of};
use crate::backend::url::UrlError;
use crate::secret;

/// The versions of the interface.
const VERSIONS: [&str; 2] = ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];
/// The extension of a cluster with a configuration for plug-ins.
const EXTENSION: &str = "client.authentication.k8s.io/exec";
/// What a plug-in is not told of a cluster.
const OF_CLIENT: [&str; 2] = ["certificate-authority", "extensions"];
/// How long a plug-in may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Credentials are renewed this many seconds before they end.
const BEFORE_END: i64 = 60;

/// A plug-in, and what it has printed.
pub(super) struct Plugin {
    program: PathBuf,
    /// As in the kubeconfig.
    exec: Value,
    /// What it is given in the environment.
    input: String,
    /// What it is, in messages.
    source: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    credentials: Option<Credentials>,
    /// The program, if it runs.
    running: Option<JoinHandle<Result<Credentials, StoreError>>>,
}

/// What a plug-in has printed.
#[derive(Clone)]
pub(super) struct Credentials {
    pub token: Option<String>,
    /// And its key.
    pub certificate: Option<(Pem, Pem)>,
    /// When they expire, by this host's clock.
    ends: Option<Timestamp>,
}

impl Plugin {
    /// Returns the plug-in of a user, for a cluster. It is not run yet.
    ///
    /// # Errors
    /// It has no command, another version, or needs a terminal.
    pub fn of(exec: &Part<'_>, cluster: &Part<'_>) -> Result<Plugin, UrlError> {
        let command = exec.required("command")?;
        let path = exec.path("command").filter(|_| command.contains('/'));
        let version = exec.required("apiVersion")?;
        if !VERSIONS.contains(&version) {
            return Err(exec.wrong(&format!("apiVersion is not {}", VERSIONS.join(" or "))));
        }
        if exec.text("interactiveMode") == Some("Always") {
            return Err(exec.wrong("interactiveMode is Always: dlock gives a plug-in no terminal"));
        }
        let mut spec = json!({"interactive": false});
        if exec.value["provideClusterInfo"] == true {
            spec["cluster"] = information(cluster)?;
        }
        let input = json!({"kind": "ExecCredential", "apiVersion": version, "spec": spec}).to_string();
        Ok(Plugin {
            program: path.unwrap_or_else(|| command.into()),
            exec: exec.value.clone(),
            input,
            source: format!("{exec}: {command}"),
            state: Mutex::default(),
        })
    }

    /// Returns credentials that are valid now. The plug-in is run when they are about to expire, and waited for when they
    /// have. If the future is dropped, it runs on until the runtime ends, and what it prints is used by the next call.
    ///
    /// # Errors
    /// It cannot be run, takes too long, or prints no credentials, and there are no others.
    pub async fn credentials(&self) -> Result<Credentials, StoreError> {
        let State { credentials, running } = &mut *self.state.lock().await;
        let valid = credentials.clone().filter(|known| known.left() > 0);
        if let Some(valid) = &valid
            && (valid.left() > BEFORE_END
                || !running.get_or_insert_with(|| tokio::spawn(self.run())).is_finished())
        {
            return Ok(valid.clone());
        }
        let result = running.get_or_insert_with(|| tokio::spawn(self.run())).await;
        *running = None;
        let new = result.unwrap_or_else(|_| Err(closed())).or_else(|error| valid.ok_or(error))?;
        *credentials = Some(new.clone());
        Ok(new)
    }

    /// Returns what it is, in words, if it is to print the first credentials, or those after the last have expired.
    pub fn awaited(&self) -> Option<&str> {
        let state = self.state.try_lock().ok()?;
        let is_valid = state.credentials.as_ref().is_some_and(|known| known.left() > 0);
        (state.running.is_some() && !is_valid).then_some(&*self.source)
    }

    /// Forgets the credentials.
    pub fn forget(&self) {
        // Whoever has the lock is renewing them.
        self.state.try_lock().into_iter().for_each(|mut state| state.credentials = None);
    }

    fn run(&self) -> impl Future<Output = Result<Credentials, StoreError>> + use<> {
        let (exec, source) = (&self.exec, self.source.clone());
        let list = |key: &str| exec[key].as_array().into_iter().flatten();
        let mut command = Command::new(&self.program);
        command.args(list("args").filter_map(Value::as_str)).env("KUBERNETES_EXEC_INFO", &self.input);
        let set = list("env").filter_map(|set| set["name"].as_str().zip(set["value"].as_str()));
        command.envs(set);
        let hint = exec["installHint"].as_str().map(|hint| format!(": {}", shown(hint))).unwrap_or_default();
        let version = exec["apiVersion"].clone();
        async move {
            let output = output_of(command, LIMIT).await;
            let output = output.map_err(|error| error.map_text(|text| format!("{source}: {text}{hint}")))?;
            read(&output, &version, &source)
                .map_err(|why| StoreError::Denied(format!("{source}: it printed {why}")))
        }
    }
}

impl Credentials {
    /// Returns how many seconds they are still valid.
    fn left(&self) -> i64 {
        self.ends.map_or(i64::MAX, |end| end.as_second() - Timestamp::now().as_second())
    }
}

/// Reads what a plug-in prints. Its secrets become known.
fn read(output: &[u8], version: &Value, source: &str) -> Result<Credentials, &'static str> {
    let printed: Value =
        serde_json::from_slice(output).map_err(|_| "no ExecCredential: run it to see why")?;
    if printed["kind"] != "ExecCredential" || printed["apiVersion"] != *version {
        return Err("no ExecCredential of the version in the kubeconfig");
    }
    let text = |key: &str| printed["status"][key].as_str().filter(|text| !text.is_empty());
    let pem = |text: &str| Pem::Text { pem: text.into(), source: format!("{source}: its certificate") };
    let token = text("token").map(str::to_owned);
    token.iter().for_each(|token| secret::keep(token));
    let certificate = text("clientCertificateData").zip(text("clientKeyData"));
    let certificate = certificate.map(|(certificate, key)| (pem(certificate), pem(key)));
    if token.is_none() && certificate.is_none() {
        return Err("neither a token nor a certificate with its key");
    }
    let ends = text("expirationTimestamp").map(str::parse).transpose();
    Ok(Credentials {
        token,
        certificate,
        ends: ends.map_err(|_| "an expirationTimestamp that is not a time")?,
    })
}

/// Returns what a plug-in may know of a cluster.
fn information(cluster: &Part<'_>) -> Result<Value, UrlError> {
    let mut known = cluster.value.clone();
    if let Some(authority) = cluster.pem("certificate-authority")? {
        let pem = authority.read().map_err(|error| cluster.wrong(&error.to_string()))?;
        known["certificate-authority-data"] = STANDARD.encode(pem).into();
    }
    let extensions = cluster.value["extensions"].as_array().into_iter().flatten();
    let own =
        extensions.filter(|extension| extension["name"] == EXTENSION).map(|own| own["extension"].clone());
    own.for_each(|own| known["config"] = own);
    known.as_object_mut().into_iter().for_each(|map| map.retain(|key, _| !OF_CLIENT.contains(&key.as_str())));
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = VERSIONS[0];

    fn printed(status: &str) -> Result<Credentials, &'static str> {
        let text = format!(r#"{{"kind":"ExecCredential","apiVersion":"{V1}","status":{status}}}"#);
        read(text.as_bytes(), &V1.into(), "p")
    }

    #[test]
    fn what_a_plug_in_prints_are_credentials() {
        let credentials =
            printed(r#"{"token":"t0ken-of-the-test","expirationTimestamp":"2020-01-31T02:00:00Z"}"#);
        let credentials = credentials.expect("credentials");
        assert_eq!(credentials.token.as_deref(), Some("t0ken-of-the-test"));
        assert!(credentials.left() < 0);
        let both = printed(r#"{"clientCertificateData":"c","clientKeyData":"k"}"#).expect("credentials");
        assert!(both.token.is_none() && both.certificate.is_some() && both.left() == i64::MAX);
        for (wrong, expected) in [
            ("{}", "neither a token nor a certificate with its key"),
            (r#"{"clientKeyData":"k"}"#, "neither a token nor a certificate with its key"),
            (
                r#"{"token":"t0ken-that-never-ends","expirationTimestamp":"never"}"#,
                "an expirationTimestamp that is not a time",
            ),
        ] {
            assert_eq!(printed(wrong).err(), Some(expected));
        }
        for wrong in [
            "",
            "text",
            r#"{"kind":"ExecCredential","apiVersion":"v0","status":{"token":"t0ken-of-version-0"}}"#,
        ] {
            assert!(read(wrong.as_bytes(), &V1.into(), "p").is_err(), "{wrong}");
        }
    }
}
