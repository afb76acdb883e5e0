//! The sources of credentials that have to be asked: the endpoint of a container, the metadata service of an instance, a
//! program, and the service that issues those of a role.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::timeout;

use super::keys::Keys;
use super::profile::Settings;
use super::service::own_server;
use super::signature::{Scope, encoded, sign};
use super::xml::element;
use crate::backend::net::http::{Endpoint, Method, Proxy, Reply, request};
use crate::backend::net::output_of;
use crate::backend::{StoreError, io_text};
use crate::random;
use crate::{input, secret};

/// How long the services on this host, or beside it, may take.
const NEARBY: Duration = Duration::from_secs(1);
/// How long a service in the network may take.
const REMOTE: Duration = Duration::from_secs(5);
/// How long a program may take.
const PROGRAM: Duration = Duration::from_secs(60);
/// Longer than any token or reply.
const LONGEST: u64 = 64 << 10;
const CONTAINER: &str = "http://169.254.170.2";
/// What the metadata service of an instance is called in messages.
pub(super) const METADATA_SERVICE: &str = "the instance's metadata service";
const INSTANCE: &str = "http://169.254.169.254";
/// The hosts that may be asked without TLS: those of ECS and EKS, besides this host.
const CONTAINER_HOSTS: [&str; 4] = ["169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost"];
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";

/// Credentials as containers, instances and programs state them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Stated {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "SessionToken")]
    token: Option<String>,
    expiration: Option<String>,
}

impl Stated {
    fn parse(source: &str, bytes: &[u8]) -> Result<Keys, StoreError> {
        let wrong = |_| StoreError::Config(format!("{source}: no credentials in its reply"));
        let stated: Stated = serde_json::from_slice(bytes).map_err(wrong)?;
        let keys = Keys::new(&stated.access_key_id, &stated.secret_access_key, stated.token.as_deref());
        Ok(keys.until(stated.expiration.as_deref()))
    }
}

/// Waits for a source, and names it in its error.
async fn within<T>(
    limit: Duration,
    source: &str,
    reply: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let reply = timeout(limit, reply).await.unwrap_or_else(|_| Err(StoreError::unreachable("no answer")));
    reply.map_err(|error| named(source, error))
}

fn named(source: &str, error: StoreError) -> StoreError {
    error.map_text(|text| format!("credentials: {source}: {text}"))
}

fn endpoint(variable: &str, url: &str) -> Result<Endpoint, StoreError> {
    Endpoint::parse(url).map_err(|error| StoreError::Config(format!("{variable}: {error}")))
}

/// Returns the keys of the container's role; `None` if this is not such a container.
///
/// # Errors
/// Its endpoint does not reply with credentials, or may not be asked without TLS.
pub(super) async fn container(settings: &Settings) -> Result<Option<Keys>, StoreError> {
    const FULL: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    let url = match settings.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") {
        Some(path) => format!("{CONTAINER}{path}"),
        None => match settings.variable(FULL) {
            Some(url) => url.to_owned(),
            None => return Ok(None),
        },
    };
    let endpoint = endpoint(FULL, &url)?;
    let name = endpoint.host.name.as_str();
    let is_local = CONTAINER_HOSTS.contains(&name)
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if !endpoint.is_secure && !is_local {
        return Err(StoreError::Config(format!(
            "{FULL}: http:// is accepted only for this host, ECS and EKS: use https://"
        )));
    }
    let token = match settings.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
        Some(file) => Some(token(file)?),
        None => settings.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").map(str::to_owned),
    };
    token.iter().for_each(|token| secret::keep(token));
    let headers: Vec<_> = token.iter().map(|token| ("authorization", token.as_str())).collect();
    let source = "the container's endpoint";
    let reply = within(NEARBY, source, endpoint.fetch(Method::GET, &endpoint.path, &headers, "")).await?;
    Stated::parse(source, &reply.body).map(Some)
}

/// Reads a token from a file, as a line.
fn token(file: &str) -> Result<String, StoreError> {
    let bytes = input::read(Path::new(file), LONGEST)
        .map_err(|error| StoreError::Config(format!("{file}: {}", io_text(&error))))?;
    let token = String::from_utf8_lossy(&bytes).trim_end().to_owned();
    secret::keep(&token);
    Ok(token)
}

/// Returns the keys of the instance's role; `None` if there is no metadata service, or the instance has no role.
///
/// # Errors
/// The service replies with something else.
pub(super) async fn instance(settings: &Settings) -> Result<Option<Keys>, StoreError> {
    const VARIABLE: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
    if settings.is_on("AWS_EC2_METADATA_DISABLED") {
        return Ok(None);
    }
    let service = endpoint(VARIABLE, settings.variable(VARIABLE).unwrap_or(INSTANCE).trim_end_matches('/'))?;
    let asked = async {
        let ttl = [("x-aws-ec2-metadata-token-ttl-seconds", "21600")];
        let reply = service.fetch(Method::PUT, "/latest/api/token", &ttl, "").await?;
        let token = text(&reply);
        let token = [("x-aws-ec2-metadata-token", token.as_str())];
        let roles = text(&service.fetch(Method::GET, ROLES, &token, "").await?);
        let role = roles.lines().next().unwrap_or_default();
        service.fetch(Method::GET, &format!("{ROLES}{role}"), &token, "").await
    };
    // Where there is no such service, its address is silent.
    match timeout(NEARBY, asked).await {
        Ok(Ok(reply)) => Stated::parse(METADATA_SERVICE, &reply.body).map(Some),
        // It is there, and cannot reply now.
        Ok(Err(error @ StoreError::Unavailable { maybe_applied: true, .. })) => {
            Err(named(METADATA_SERVICE, error))
        }
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).trim().to_owned()
}

/// Runs a program that prints credentials, and returns them. If the future is dropped, it is killed.
///
/// # Errors
/// It cannot be run, or prints something else.
pub(super) async fn process(command: &str) -> Result<Keys, StoreError> {
    let source = "credential_process";
    let words = words(command);
    let (program, arguments) =
        words.split_first().ok_or_else(|| StoreError::Config(format!("{source}: it is empty")))?;
    let mut command = Command::new(program);
    command.args(arguments);
    let output = output_of(command, PROGRAM).await.map_err(|error| named(source, error))?;
    Stated::parse(source, &output)
}

/// Returns the words of a command line, of which those in quotes may contain spaces.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote, mut is_open) = (Vec::<String>::new(), None, false);
    for character in line.chars() {
        match quote {
            Some(open) if open == character => quote = None,
            None if ['\'', '"'].contains(&character) => {
                quote = Some(character);
                if !is_open {
                    words.push(String::new());
                }
                is_open = true;
            }
            None if character.is_whitespace() => is_open = false,
            _ => {
                if !is_open {
                    words.push(String::new());
                }
                is_open = true;
                words.iter_mut().last().into_iter().for_each(|word| word.push(character));
            }
        }
    }
    words
}

/// The service that issues credentials of roles.
pub(super) struct Sts<'a> {
    pub settings: &'a Settings,
    pub region: &'a str,
    /// The name of the session.
    pub session: Option<&'a str>,
}

impl Sts<'_> {
    /// Returns the keys of a role that these keys may assume.
    ///
    /// # Errors
    /// The service refuses, or does not reply.
    pub async fn assume_role(
        &self,
        source: &Keys,
        role: &str,
        external: Option<&str>,
    ) -> Result<Keys, StoreError> {
        let external = external.map(|id| ("ExternalId", id));
        let body = self.body("AssumeRole", role, external);
        self.ask(&body, Some(source)).await
    }

    /// Returns the keys of a role for the identity that a file proves.
    ///
    /// # Errors
    /// The file cannot be read; the service refuses, or does not reply.
    pub async fn web_identity(&self, role: &str, file: &str) -> Result<Keys, StoreError> {
        let token = token(file)?;
        let body = self.body("AssumeRoleWithWebIdentity", role, Some(("WebIdentityToken", &token)));
        self.ask(&body, None).await
    }

    fn body(&self, action: &str, role: &str, more: Option<(&str, &str)>) -> String {
        let session = self.session.map_or_else(|| format!("dlock-{}", &random::id()[..8]), str::to_owned);
        let fields = [("Action", action), ("Version", "2011-06-15"), ("RoleArn", role)];
        let fields = fields.into_iter().chain([("RoleSessionName", session.as_str())]).chain(more);
        fields.map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
    }

    async fn ask(&self, body: &str, keys: Option<&Keys>) -> Result<Keys, StoreError> {
        let endpoint = match self.settings.endpoint("AWS_ENDPOINT_URL_STS")? {
            Some((source, url)) => endpoint(source, &url)?,
            None => own_server("sts", self.region),
        };
        let kind = [("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
        let mut request = request(Method::POST, "/", &kind, body)?;
        if let Some(keys) = keys {
            let scope = Scope { region: self.region, service: "sts" };
            sign(&mut request, &endpoint.host_header(), keys, scope)?;
        }
        let variable = |name: &str| self.settings.variable(name).map(str::to_owned);
        let proxy = Proxy::of(&endpoint.address(), endpoint.is_secure, &variable);
        let proxy = proxy.map_err(|error| StoreError::Config(error.to_string()))?;
        let asked = async {
            let reply = endpoint
                .client(self.settings.variable("AWS_CA_BUNDLE"))?
                .through(proxy.as_ref())
                .send(request)
                .await?;
            let xml = text(&reply);
            let keys = element(&xml, "AccessKeyId").zip(element(&xml, "SecretAccessKey"));
            let Some((id, secret)) = keys.filter(|_| reply.status.is_success()) else {
                return Err(reply.failure());
            };
            let keys = Keys::new(&id, &secret, element(&xml, "SessionToken").as_deref());
            Ok(keys.until(element(&xml, "Expiration").as_deref()))
        };
        within(REMOTE, "the service that issues credentials (STS)", asked).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_may_be_quoted() {
        assert_eq!(words("/bin/x  'a b'\"c\" d=\"\" ''"), ["/bin/x", "a bc", "d=", ""]);
    }

    #[test]
    fn what_is_stated_are_keys_with_an_end() {
        let keys = Stated::parse("x", br#"{"Version":1,"AccessKeyId":"a","SecretAccessKey":"longsecret","SessionToken":"token1234","Expiration":"2026-01-31T02:00:00Z"}"#);
        let keys = keys.expect("keys");
        assert_eq!(
            (keys.id.as_str(), keys.session.as_deref(), keys.ends),
            ("a", Some("token1234"), Some(1_769_824_800))
        );
        assert!(Stated::parse("x", b"{\"Code\":\"Failed\"}").is_err());
    }
}
