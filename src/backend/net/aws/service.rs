//! One of AWS's services, as a URL, the environment and the configuration files of AWS name its server.

use std::time::Duration;

use super::profile::Settings;
use crate::backend::StoreError;
use crate::backend::net::http::{Endpoint, Reply};
use crate::backend::net::{Security, TlsSettings};
use crate::backend::options::{Options, UrlOption, Value, of_access, of_lock};
use crate::backend::url::{Environment, Host, Url, UrlError};
use crate::clock::wall_micros;
use crate::duration::show_distance;

/// The store's clock shows whole seconds, and each renewal is a paid request.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(10);
/// The option for another server than AWS's own, ...
pub const ENDPOINT: UrlOption = of_lock(
    "endpoint",
    Value::Text(""),
    "The server, as `http://HOST[:PORT]` or `https://HOST[:PORT]`, if it is not AWS.",
);
/// ... and for another profile than that of the environment.
pub const PROFILE: UrlOption =
    of_access("profile", Value::Text(""), "The profile of AWS's configuration files to use.");
/// The region of a server that is not AWS's and does not say another one.
const USUAL_REGION: &str = "us-east-1";
/// The partitions of AWS besides the usual one: what their regions begin with, their domain, and their name.
const PARTITIONS: [(&str, &str, &str); 7] = [
    ("cn-", "amazonaws.com.cn", "aws-cn"),
    ("us-gov-", "amazonaws.com", "aws-us-gov"),
    ("us-iso-", "c2s.ic.gov", "aws-iso"),
    ("us-isob-", "sc2s.sgov.gov", "aws-iso-b"),
    ("eu-isoe-", "cloud.adc-e.uk", "aws-iso-e"),
    ("us-isof-", "csp.hci.ic.gov", "aws-iso-f"),
    ("eusc-", "amazonaws.eu", "aws-eusc"),
];
/// What a service replies, with whatever status, to a request that it has not carried out because there were too many.
const BUSY: [&str; 6] = [
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "Throttling",
    "RequestLimitExceeded",
    "LimitExceededException",
    "TransactionConflictException",
];

/// A service in a region, and what the environment says of it.
pub struct Service {
    /// The settings of the profile that the URL names (`profile=`), or the environment.
    pub settings: Settings,
    /// The region.
    pub region: String,
    /// The server.
    pub server: Endpoint,
    /// Nobody names the server: it is AWS's own.
    pub is_aws: bool,
}

impl Service {
    /// Returns the service of this name by the options `endpoint`, `region` and `profile`; `variable` names its endpoint, and
    /// `thing` is what is in the region. An endpoint that is not in the URL is added to the options.
    ///
    /// # Errors
    /// There is no region, a value is not one, or the profile cannot be read.
    pub fn of(
        options: &mut Options,
        environment: Environment<'_>,
        (name, variable, thing): (&str, &'static str, &str),
    ) -> Result<Service, UrlError> {
        let settings = Settings::of(environment, options.given("profile"));
        let wrong = |error: StoreError| UrlError::new(error.to_string());
        let profile = settings.profile().map_err(wrong)?;
        let region = options.given("region").filter(|region| !region.is_empty());
        let region =
            region.or_else(|| settings.variable("AWS_REGION").or(settings.variable("AWS_DEFAULT_REGION")));
        let region = region.or_else(|| profile.get("region")).map(str::to_owned);
        let named = options.given("endpoint").filter(|endpoint| !endpoint.is_empty());
        let endpoint = match (named, settings.endpoint(variable).map_err(wrong)?) {
            (Some(named), _) => Some(Endpoint::parse(named).map_err(|error| error.about("endpoint"))?),
            (None, Some((source, url))) => {
                options.add("endpoint", &url)?;
                let named = |error| UrlError::new(format!("{source}: {error}"));
                Some(Endpoint::parse(&url).map_err(named)?)
            }
            (None, None) => None,
        };
        let is_aws = endpoint.is_none();
        if endpoint.as_ref().is_some_and(|endpoint| !["", "/"].contains(&endpoint.path.as_str())) {
            return Err(UrlError::new("endpoint= is a server, without a path").about("endpoint"));
        }
        let region = match region {
            Some(region) => region,
            None if is_aws => {
                return Err(UrlError::new(format!(
                    "the region of the {thing} is missing: add region=, or set AWS_REGION"
                )));
            }
            None => USUAL_REGION.to_owned(),
        };
        let allowed = |character: char| character.is_ascii_alphanumeric() || character == '-';
        if !region.chars().all(allowed) {
            return Err(
                UrlError::value("region", "the name of a region, such as eu-west-1", &region).about("region")
            );
        }
        let server = endpoint.unwrap_or_else(|| own_server(name, &region));
        Ok(Service { settings, region, server, is_aws })
    }

    /// Returns how the server is reached.
    ///
    /// # Errors
    /// Options contradict each other.
    pub fn security(&self, url: &Url, options: &mut Options) -> Result<Security, UrlError> {
        let is_secure = self.server.is_secure;
        if let Some(file) = self.settings.variable("AWS_CA_BUNDLE")
            && options.given("ca_file").is_none()
            && is_secure
        {
            options.add("ca_file", file).map_err(|error| UrlError::new(format!("AWS_CA_BUNDLE: {error}")))?;
        }
        let tls = is_secure.then(TlsSettings::default);
        let other = if is_secure { "endpoint=http" } else { "endpoint=https" };
        Security::new(url, options, tls, other.to_owned(), ": use an endpoint= with https://")
    }
}

/// Returns the server of one of AWS's services in a region.
pub(super) fn own_server(service: &str, region: &str) -> Endpoint {
    let name = format!("{service}.{region}.{}", partition(region).0);
    Endpoint { host: Host { name, port: None }, is_secure: true, path: String::new() }
}

/// Returns the domain and the name of the partition of AWS that a region is in.
pub fn partition(region: &str) -> (&'static str, &'static str) {
    let found = PARTITIONS.iter().find(|(prefix, ..)| region.starts_with(prefix));
    found.map_or(("amazonaws.com", "aws"), |&(_, domain, name)| (domain, name))
}

/// Returns the error of a request that was refused because there were too many, if that is what the service has replied, with
/// what it has `said`.
pub fn throttled(error: &str, said: &str) -> Option<StoreError> {
    BUSY.contains(&error).then(|| StoreError::transient(format!("the server replies {error}: {said}"), false))
}

/// Returns the error of a signature that is refused because of the clock of this host.
pub fn skewed(reply: &Reply) -> StoreError {
    let now = Duration::from_micros(wall_micros());
    let clock = match reply.date() {
        Some(date) if now > date => format!("{} ahead of the store's", show_distance(now - date)),
        Some(date) => format!("{} behind the store's", show_distance(date - now)),
        None => "not that of the store".to_owned(),
    };
    StoreError::Denied(format!(
        "the signature is refused because this host's clock is {clock}: synchronize it (NTP)"
    ))
}

/// Returns the error of credentials that lack the right to this, with what the service has `said`.
pub fn lacks_right(to: &str, said: &str) -> StoreError {
    StoreError::Denied(format!("the credentials lack the right to {to} (see dlock doctor --policy): {said}"))
}

/// Returns the error of credentials that have expired, by the service's name of it.
pub fn expired(error: &str, said: &str) -> StoreError {
    StoreError::Denied(format!("the credentials have expired ({error}): {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_in_one_partition() {
        for (region, server, name) in [
            ("eu-west-1", "sts.eu-west-1.amazonaws.com", "aws"),
            ("cn-north-1", "sts.cn-north-1.amazonaws.com.cn", "aws-cn"),
            ("us-gov-west-1", "sts.us-gov-west-1.amazonaws.com", "aws-us-gov"),
            ("us-iso-east-1", "sts.us-iso-east-1.c2s.ic.gov", "aws-iso"),
            ("us-isob-east-1", "sts.us-isob-east-1.sc2s.sgov.gov", "aws-iso-b"),
            ("eu-isoe-west-1", "sts.eu-isoe-west-1.cloud.adc-e.uk", "aws-iso-e"),
            ("us-isof-south-1", "sts.us-isof-south-1.csp.hci.ic.gov", "aws-iso-f"),
            ("eusc-de-east-1", "sts.eusc-de-east-1.amazonaws.eu", "aws-eusc"),
        ] {
            let found = (own_server("sts", region).host_header(), partition(region).1);
            assert_eq!(found, (server.to_owned(), name));
        }
    }
}
