//! How a cluster's API server is reached: by a context of the kubeconfig, or from a pod of the cluster.
//!
//! As with kubectl, credentials are used over TLS only. A server that is not verified is refused.

mod kubeconfig;
mod plugin;
mod yaml;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::http::HeaderValue;
use serde_json::{Value, json};

use self::kubeconfig::{Kubeconfig, Part};
use self::plugin::Plugin;
use crate::backend::net::Words;
use crate::backend::net::http::{Client, Endpoint, Proxy, Route};
use crate::backend::url::{Environment, Host, UrlError};
use crate::backend::{StoreError, io_text};
use crate::{input, secret};

/// Where a pod finds what it is given.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Longer than any token.
const LONGEST: u64 = 64 << 10;
const WORDS: Words = Words {
    authorities: "certificate-authority in the kubeconfig",
    certificate: "client-certificate and client-key in the kubeconfig",
    server_name: "tls-server-name in the kubeconfig",
};
const INSECURE: &str = "insecure-skip-tls-verify: anyone could take the lock, and read the credentials: name the \
                        authority of the server by certificate-authority instead";
const NOWHERE: &str = "there is no kubeconfig (KUBECONFIG, ~/.kube/config), and dlock is not in a pod of a cluster \
                       (KUBERNETES_SERVICE_HOST)";
const UNSET: &str = ": there is no current context: add context=, or run kubectl config use-context";
/// What a user must not have.
const REFUSED: [(&str, &str); 2] = [
    ("as", "dlock does not act as another user: give this one the rights"),
    ("auth-provider", "it is obsolete: use a plug-in (exec)"),
];

/// An API server, and how to reach it.
#[derive(Clone)]
pub(super) struct Cluster {
    /// Without the client certificate of a plug-in, which [`Cluster::client`] adds.
    pub route: Route,
    /// What the paths of all requests begin with; without a slash at its end.
    pub path: String,
    /// The namespace of the context, or of the pod.
    pub namespace: Option<String>,
    /// What the server and the credentials are from, in words.
    pub source: String,
    login: Login,
}

/// What the header `Authorization` says.
#[derive(Clone)]
enum Login {
    Nothing,
    /// This.
    Known(String),
    /// A token in a file.
    File(PathBuf),
    Plugin(Arc<Plugin>),
}

impl Cluster {
    /// Reads the kubeconfig, or else, if none is named and there is none in the home, what a pod is given. Contacts
    /// nobody, and runs no program.
    ///
    /// # Errors
    /// There is neither; a file or its context cannot be used; or of the files that are named, none exists.
    pub fn read(context: Option<&str>, environment: Environment<'_>) -> Result<Cluster, UrlError> {
        let mut config = Kubeconfig::read(environment)?;
        if config.0.is_empty() {
            config.0.push(of_pod(Path::new(SERVICE_ACCOUNT), environment)?);
        }
        Cluster::of(&config, context, environment)
    }

    fn of(
        config: &Kubeconfig,
        name: Option<&str>,
        environment: Environment<'_>,
    ) -> Result<Cluster, UrlError> {
        let unset = || UrlError::new(format!("{}{UNSET}", config.files()));
        let name = name.or(config.current_context()).ok_or_else(unset)?;
        let context = config.named("context", name)?;
        let cluster = config.named("cluster", context.required("cluster")?)?;
        let wrong = |error: UrlError| cluster.wrong(&error.to_string());
        let server = Endpoint::parse(cluster.required("server")?).map_err(wrong)?;
        let path = server.path.split('?').next().unwrap_or_default().trim_end_matches('/').to_owned();
        if cluster.value["insecure-skip-tls-verify"] == true {
            return Err(cluster.wrong(INSECURE));
        }
        let proxy = match cluster.text("proxy-url") {
            Some(url) => Some(Proxy::parse("proxy-url", url.to_owned()).map_err(wrong)?),
            None => Proxy::of(&server.address(), server.is_secure, environment)?,
        };
        let mut security = server.security()?;
        let mut login = Login::Nothing;
        if let Some(tls) = &mut security.tls {
            tls.words = WORDS;
            tls.ca_file = cluster.pem("certificate-authority")?;
            tls.server_name = cluster.text("tls-server-name").map(str::to_owned);
            if let Some(name) = context.text("user") {
                let user = config.named("user", name)?;
                (tls.cert_file, tls.key_file) = (user.pem("client-certificate")?, user.pem("client-key")?);
                login = Login::of(&user, &cluster)?;
            }
            tls.check().map_err(|error| context.wrong(&error.to_string()))?;
        }
        let namespace = context.text("namespace").map(str::to_owned);
        let route = Route { address: server.address(), security, proxy };
        Ok(Cluster { route, path, namespace, source: context.to_string(), login })
    }

    /// Returns a client for a new connection, with a certificate that is valid now; does not connect. If the future is
    /// dropped, a plug-in runs on, and its reply is used by the next call.
    ///
    /// # Errors
    /// A plug-in that has to be run fails.
    pub async fn client(&self) -> Result<Client, StoreError> {
        let mut route = self.route.clone();
        if let (Login::Plugin(plugin), Some(tls)) = (&self.login, &mut route.security.tls)
            && let Some((certificate, key)) = plugin.credentials().await?.certificate
        {
            (tls.cert_file, tls.key_file) = (Some(certificate), Some(key));
        }
        Ok(route.client())
    }

    /// Returns the header `Authorization` of the next request, if it has one. Its file is read each time; a plug-in is run
    /// when its credentials have expired. If the future is dropped, it runs on, and its reply is used by the next call.
    ///
    /// # Errors
    /// The file cannot be read, or the plug-in fails.
    pub async fn authorization(&self) -> Result<Option<HeaderValue>, StoreError> {
        let text = match &self.login {
            Login::Nothing => return Ok(None),
            Login::Known(text) => text.clone(),
            Login::File(path) => bearer(&read_text(path)?),
            Login::Plugin(plugin) => match plugin.credentials().await?.token {
                Some(token) => bearer(&token),
                None => return Ok(None),
            },
        };
        let mut header = HeaderValue::try_from(text)
            .map_err(|_| StoreError::Config(format!("{}: the token cannot be in a header", self.source)))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    /// Returns the plug-in that whoever needs its credentials waits for, in words.
    pub fn awaited_plugin(&self) -> Option<&str> {
        match &self.login {
            Login::Plugin(plugin) => plugin.awaited(),
            _ => None,
        }
    }

    /// Forgets the credentials of a plug-in, which the server has refused (401): it is run again for the next request.
    pub fn forget(&self) {
        if let Login::Plugin(plugin) = &self.login {
            plugin.forget();
        }
    }
}

impl Login {
    /// Returns how a user logs in, who may have a client certificate besides. Secrets become known.
    fn of(user: &Part<'_>, cluster: &Part<'_>) -> Result<Login, UrlError> {
        for (key, why) in REFUSED {
            user.below(key).map_or(Ok(()), |part| Err(part.wrong(why)))?;
        }
        if let Some(path) = user.path("tokenFile") {
            return Ok(Login::File(path));
        }
        if let Some(token) = user.text("token") {
            return Ok(Login::Known(bearer(token)));
        }
        if let (Some(name), password) = (user.text("username"), user.text("password").unwrap_or_default()) {
            let login = STANDARD.encode(format!("{name}:{password}"));
            [password, &login].iter().for_each(|text| secret::keep(text));
            return Ok(Login::Known(format!("Basic {login}")));
        }
        let plugin = user.below("exec").map(|exec| Plugin::of(&exec, cluster)).transpose()?;
        Ok(plugin.map_or(Login::Nothing, |plugin| Login::Plugin(Arc::new(plugin))))
    }
}

/// Returns the header for a token, which becomes known as a secret.
fn bearer(token: &str) -> String {
    secret::keep(token);
    format!("Bearer {token}")
}

/// Returns the kubeconfig that says the same as what a pod is given in a directory and its environment.
fn of_pod(directory: &Path, environment: Environment<'_>) -> Result<(PathBuf, Value), UrlError> {
    let set = |name| environment(name).filter(|value| !value.is_empty());
    let server = set("KUBERNETES_SERVICE_HOST").zip(set("KUBERNETES_SERVICE_PORT"));
    let (name, port) = server.ok_or_else(|| UrlError::new(NOWHERE))?;
    let host = Host { name, port: None };
    let cluster = json!({"server": format!("https://{host}:{port}"), "certificate-authority": "ca.crt"});
    let namespace = read_text(&directory.join("namespace")).ok();
    let value = json!({
        "current-context": "pod",
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod", "namespace": namespace}}],
        "clusters": [{"name": "pod", "cluster": cluster}],
        "users": [{"name": "pod", "user": {"tokenFile": "token"}}],
    });
    Ok((directory.join("token"), value))
}

/// Reads a file without the white space around its text.
fn read_text(path: &Path) -> Result<String, StoreError> {
    let text = input::read(path, LONGEST).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    text.map_err(|error| StoreError::Config(format!("{}: {}", path.display(), io_text(&error))))
}

#[cfg(test)]
mod tests;
