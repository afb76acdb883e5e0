//! The sources of credentials that have to be asked: the endpoint of a container, the metadata service of an instance, a
//! program, and the service that issues those of a role.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::timeout;

use super::keys::Keys;
use super::profile::Settings;
use super::service::{expired, own_server, throttled};
use super::signature::{Scope, encoded, sign};
use super::xml::element;
use crate::backend::net::http::{Endpoint, Method, Reply, request, shown};
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

/// Runs the program of this command line, which prints credentials, and returns them. If the future is dropped, it is killed.
///
/// # Errors
/// It cannot be run, or prints something else, as without a login that it needs.
pub(super) async fn process(command: String) -> Result<Keys, StoreError> {
    let source = "credential_process";
    let words = words(&command);
    let (program, arguments) =
        words.split_first().ok_or_else(|| StoreError::Config(format!("{source}: it is empty")))?;
    let mut command = Command::new(program);
    command.args(arguments);
    let output = output_of(command, PROGRAM).await.map_err(|error| named(source, error))?;
    let wrong = "it printed no credentials: run it to see why";
    Stated::parse(source, &output).map_err(|_| named(source, StoreError::Denied(wrong.into())))
}

/// Returns the words of a command line, quoted as in a POSIX shell: a backslash takes the next character literally, in double
/// quotes only a quote or a backslash, and in single quotes nothing.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        if quote.is_none() && character.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '\'' | '"') => quote = Some(character),
            (None, '\\') => word.extend(characters.next()),
            (Some('"'), '\\') => word.push(characters.next_if(|next| "\"\\".contains(*next)).unwrap_or('\\')),
            _ => word.push(character),
        }
    }
    words.extend(word);
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
        let mut client = endpoint.client(self.settings.variable("AWS_CA_BUNDLE"), &variable)?;
        let asked = async {
            let reply = client.send(request).await?;
            let xml = text(&reply);
            let keys = element(&xml, "AccessKeyId").zip(element(&xml, "SecretAccessKey"));
            let Some((id, secret)) = keys.filter(|_| reply.status.is_success()) else {
                let [code, said] = ["Code", "Message"].map(|name| element(&xml, name).unwrap_or_default());
                return Err(refusal(&code, &shown(&said)).unwrap_or_else(|| reply.failure()));
            };
            let keys = Keys::new(&id, &secret, element(&xml, "SessionToken").as_deref());
            Ok(keys.until(element(&xml, "Expiration").as_deref()))
        };
        within(REMOTE, "the service that issues credentials (STS)", asked).await
    }
}

/// Returns the error that the service means by this code, whatever the status, with what it has `said`; `None` for one that the
/// status explains.
fn refusal(code: &str, said: &str) -> Option<StoreError> {
    match code {
        "ExpiredTokenException" => Some(expired(code, said)),
        "InvalidIdentityToken" => {
            Some(StoreError::Denied(format!("the web identity is not accepted ({code}): {said}")))
        }
        // The provider of the identity has not replied to the service.
        "IDPCommunicationError" => {
            Some(StoreError::transient(format!("the server replies {code}: {said}"), false))
        }
        _ => throttled(code, said),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn words_may_be_quoted() {
        assert_eq!(words("/bin/x  'a b'\"c\" d=\"\" ''"), ["/bin/x", "a bc", "d=", ""]);
    }

    /// As Python's `shlex.split` returns them, by which AWS's command-line interface reads this setting.
    #[test]
    fn a_backslash_is_that_of_a_shell() {
        for (line, expected) in [
            (r"/opt/my\ tool/creds \'a\\b\c", &["/opt/my tool/creds", r"'a\bc"][..]),
            (r#""a\"b\\c\d\'e" x"#, &[r#"a"b\c\d\'e"#, "x"]),
            (r"'a\b\' c", &[r"a\b\", "c"]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn what_a_service_says_counts_whatever_the_status() {
        let source = "credentials: the service that issues credentials (STS)";
        let transient = |code: &str| {
            StoreError::transient(format!("{source}: the server replies {code}: Rate exceeded"), false)
        };
        let denied = |why: &str| StoreError::Denied(format!("{source}: {why}: Rate exceeded"));
        let config = format!("{source}: the server replies 400 Bad Request: <ErrorResponse><Error>");
        for (code, expected) in [
            ("Throttling", transient("Throttling")),
            ("ThrottlingException", transient("ThrottlingException")),
            ("IDPCommunicationError", transient("IDPCommunicationError")),
            ("ExpiredTokenException", denied("the credentials have expired (ExpiredTokenException)")),
            ("InvalidIdentityToken", denied("the web identity is not accepted (InvalidIdentityToken)")),
            ("ValidationError", StoreError::Config(config)),
        ] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
            let url = format!("http://{}", listener.local_addr().expect("an address"));
            let variable = |name: &str| (name == "AWS_ENDPOINT_URL_STS").then(|| url.clone());
            let settings = Settings::of(&variable, None);
            let sts = Sts { settings: &settings, region: "x", session: None };
            let body = format!(
                "<ErrorResponse><Error><Code>{code}</Code><Message>Rate exceeded</Message></Error></ErrorResponse>"
            );
            let answer = async {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                stream.read_buf(&mut Vec::with_capacity(4096)).await.expect("a request");
                let head = format!("HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(format!("{head}{body}").as_bytes()).await.expect("a client");
                stream
            };
            let (result, _stream) = tokio::join!(sts.ask("Action=AssumeRole", None), answer);
            let error = result.err().expect("an error");
            match &expected {
                StoreError::Config(begin) => {
                    let is_config = matches!(&error, StoreError::Config(text) if text.starts_with(begin));
                    assert!(is_config, "{code}: {error:?}");
                }
                _ => assert_eq!(error, expected),
            }
        }
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
