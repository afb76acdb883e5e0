//! The location of a namespace and the names of its Leases, parsed from a URL without contacting the server.

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use super::config::Cluster;
use crate::backend::StoreError;
use crate::backend::options::Value::{File, Switch, Text};
use crate::backend::options::{Options, Table, of_access, of_lock};
use crate::backend::url::{Environment, Host, REQUIRE_VERIFIED_TLS, Url, UrlError};
use crate::hex;
use crate::lock::LockName;

/// Where the configuration is read from, unless the URL says.
const CONFIG_VARIABLE: &str = "KUBECONFIG";
/// The longest name of an object (RFC 1123, as Kubernetes reads it), ...
const LONGEST: usize = 253;
/// ... and of a namespace.
const LONGEST_NAMESPACE: usize = 63;
/// What the name of a Lease begins with if it is not that of the lock; what follows is the name, each byte that is not a
/// lowercase letter or a digit as a hyphen and two hex digits, ...
const ENCODED: &str = "dlock--";
/// ... or, if that is too long, its digest: no byte begins like this. Then the name is in the ledger.
const DIGEST: &str = "dlock---sha256-";
/// What the name of a Lease begins with that is not a lock's, for the same reason.
const PROBE: &str = "dlock---probe-";
const OPTIONS: Table = &[&[
    of_lock("context", Text(""), "The context of the configuration to use, if not its current one."),
    of_lock("kubeconfig", File, "The configuration to use instead of those that `KUBECONFIG` names."),
    of_access(
        REQUIRE_VERIFIED_TLS,
        Switch,
        "Reject the URL (78), before a server is contacted, unless its server has TLS with verification.",
    ),
]];

/// A namespace, and how to connect to its cluster.
#[derive(Clone)]
pub struct Location {
    pub(super) cluster: Result<Cluster, UrlError>,
    pub(super) namespace: String,
    pub(super) display: String,
}

impl Location {
    /// Returns the options of a URL.
    pub fn options(_: &str) -> Table {
        OPTIONS
    }

    /// Parses `k8s://[namespace]`, and reads the configuration. What is wrong with that is an error of whoever connects.
    ///
    /// # Errors
    /// Another form, an unknown option, or an invalid value; or there is no namespace, and no configuration to take it from.
    pub fn from_url(url: &Url, environment: Environment<'_>) -> Result<Location, UrlError> {
        let options = Options::of(url, OPTIONS)?;
        let named = match url.hosts.as_slice() {
            [] => None,
            [Host { name, port: None }] if is_namespace(name) => Some(name.clone()),
            _ => {
                return Err(UrlError::new(
                    "k8s:// takes one namespace, as in k8s://NAMESPACE; the cluster is context=",
                ));
            }
        };
        if url.username.is_some() || url.password.is_some() {
            return Err(UrlError::new(
                "k8s:// takes no username: the credentials are those of the kubeconfig",
            ));
        }
        if !url.path.trim_matches('/').is_empty() {
            return Err(UrlError::new("k8s:// has no path, only a namespace"));
        }
        let file = options.given("kubeconfig").map(str::to_owned);
        let of_file = |name: &str| match (&file, name) {
            (Some(file), CONFIG_VARIABLE) => Some(file.clone()),
            _ => environment(name),
        };
        let cluster = Cluster::read(options.given("context"), &of_file);
        let namespace = match (named, &cluster) {
            (Some(namespace), _) => namespace,
            (None, Ok(cluster)) => cluster.namespace.clone().unwrap_or_else(|| "default".to_owned()),
            (None, Err(error)) => return Err(error.clone()),
        };
        if !is_namespace(&namespace) {
            return Err(UrlError::new("the namespace of the context is not one that Kubernetes allows"));
        }
        let display = format!("k8s://{namespace}{}", options.query());
        Ok(Location { cluster, namespace, display })
    }

    /// Returns the cluster.
    ///
    /// # Errors
    /// Its configuration cannot be used.
    pub(super) fn cluster(&self) -> Result<&Cluster, StoreError> {
        self.cluster.as_ref().map_err(|error| StoreError::Config(error.to_string()))
    }

    /// Returns the path of a Lease, or of all of them.
    pub(super) fn path(&self, lease: Option<&str>) -> Result<String, StoreError> {
        let base = &self.cluster()?.path;
        let lease = lease.map(|lease| format!("/{lease}")).unwrap_or_default();
        Ok(format!("{base}/apis/coordination.k8s.io/v1/namespaces/{}/leases{lease}", self.namespace))
    }
}

/// Returns whether this may be a part of a name.
fn is_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter().all(|end| end.is_some_and(is_inner))
        && text.bytes().all(|byte| is_inner(byte) || byte == b'-')
}

/// Returns whether a namespace may have this name.
fn is_namespace(text: &str) -> bool {
    text.len() <= LONGEST_NAMESPACE && is_label(text)
}

/// Returns whether an object may have this name.
fn is_name(text: &str) -> bool {
    text.len() <= LONGEST && text.split('.').all(is_label)
}

/// Returns the name of the Lease of a lock. No two locks have the same.
pub(super) fn lease_name(name: &LockName) -> String {
    let name = name.as_str();
    if is_name(name) && !name.starts_with(ENCODED) {
        return name.to_owned();
    }
    let encoded: String = name
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
            byte => format!("-{byte:02x}"),
        })
        .collect();
    match ENCODED.len() + encoded.len() {
        ..=LONGEST => format!("{ENCODED}{encoded}"),
        _ => format!("{DIGEST}{}", hex::encode(&Sha256::digest(name))),
    }
}

/// Returns the name of a Lease that is not a lock's.
pub(super) fn probe_name(number: u64) -> String {
    format!("{PROBE}{number}")
}

/// Returns whether the name of its Lease contains that of a lock.
pub(super) fn contains_name(name: &LockName) -> bool {
    !lease_name(name).starts_with(DIGEST)
}

/// Returns the lock whose Lease has this name; `None` if only its ledger contains it, or if it is not one.
pub(super) fn name_of(lease: &str) -> Option<LockName> {
    let name = match lease.strip_prefix(ENCODED) {
        None => lease.to_owned(),
        Some(encoded) => percent_decode_str(&encoded.replace('-', "%")).decode_utf8().ok()?.into_owned(),
    };
    // What is encoded in another way is none of them.
    LockName::new(&name).ok().filter(|name| lease_name(name) == lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_locks_are_read_from_their_leases() {
        for (name, lease) in [
            ("nightly", "nightly"),
            ("my-controller.example.com", "my-controller.example.com"),
            ("Nightly", "dlock---4eightly"),
            ("a/b %", "dlock--a-2fb-20-25"),
            ("a-", "dlock--a-2d"),
            ("a..b", "dlock--a-2e-2eb"),
            ("dlock--a", "dlock--dlock-2d-2da"),
            ("é", "dlock---c3-a9"),
        ] {
            let name = LockName::new(name).expect("a name");
            assert_eq!(lease_name(&name), lease);
            assert!(is_name(lease) && contains_name(&name), "{lease}");
            assert_eq!(name_of(lease), Some(name));
        }
        let long = LockName::new(&"A".repeat(200)).expect("a name");
        let lease = lease_name(&long);
        assert!(is_name(&lease) && !contains_name(&long), "{lease}");
        let probe = probe_name(15);
        assert!(is_name(&probe), "{probe}");
        for other in [
            lease.as_str(),
            &probe,
            "dlock--",
            "dlock--a",
            "dlock---61",
            "dlock---4E",
            "dlock---4",
            "dlock---+4x",
            "A",
        ] {
            assert_eq!(name_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_url_names_a_namespace() {
        let parse = |url: &str| {
            let location = Location::from_url(&Url::parse(url).expect("a URL"), &|_| None);
            location.map(|location| location.display).map_err(|error| error.to_string())
        };
        for url in ["k8s://jobs", "k8s://jobs?context=arn:aws:eks%2Fb"] {
            assert_eq!(parse(url).map(|shown| parse(&shown) == Ok(shown)), Ok(true), "{url}");
        }
        assert_eq!(parse("kubernetes://jobs?kubeconfig=/k"), Ok("k8s://jobs?kubeconfig=/k".to_owned()));
        for url in [
            "k8s://a,b",
            "k8s://a:1",
            "k8s://a.b",
            "k8s://a_b",
            "k8s://a/b",
            "k8s://user:secret@a",
            "k8s://a?prefix=b",
        ] {
            let error = parse(url).expect_err(url);
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
