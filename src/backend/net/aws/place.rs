//! Where the locks are in one of AWS's services, as a URL says it.

use super::profile::Settings;
use super::service::Service;
use crate::backend::net::http::Route;
use crate::backend::options::Options;
use crate::backend::url::{self, Environment, Host, Url, UrlError};

/// A bucket or a table, and how to connect to its service: `SCHEME://[key-id:secret-key@]NAME[/PREFIX]`.
#[derive(Clone)]
pub struct Place {
    /// The server, and how it is reached.
    pub route: Route,
    /// The name of the bucket or the table.
    pub name: String,
    /// What the keys begin with: empty, or ending with a slash.
    pub prefix: String,
    /// The region.
    pub region: String,
    /// The name of the server in each request.
    pub host: String,
    /// The settings of the profile, or the environment.
    pub settings: Settings,
    /// The URL, without secrets.
    pub display: String,
}

impl Place {
    /// Returns the name of the bucket or table in a URL; the tuple has the scheme, the variable of its endpoint, and what is
    /// named.
    ///
    /// # Errors
    /// The URL has another form.
    pub fn name_in(url: &Url, (scheme, _, thing): (&str, &str, &str)) -> Result<String, UrlError> {
        match url.hosts.as_slice() {
            [Host { name, port: None }] => Ok(name.clone()),
            _ => Err(UrlError::new(format!(
                "{scheme}:// takes one {thing}, as in {scheme}://{}/PREFIX; a server is endpoint=",
                thing.to_uppercase()
            ))),
        }
    }

    /// Returns the place of this name in a service, by the URL and its options.
    ///
    /// # Errors
    /// Options contradict each other, or the proxy of the environment is not one.
    pub fn of(
        service: Service,
        name: String,
        url: &Url,
        options: &mut Options,
        environment: Environment<'_>,
    ) -> Result<Place, UrlError> {
        let security = service.security(url, options)?;
        let Service { settings, region, server: endpoint, .. } = service;
        let (path, user) = (url.path.trim_matches('/'), security.credentials.in_url());
        let (shown, prefix) = match path {
            "" => (String::new(), String::new()),
            path => (format!("/{}", url::encoded(path)), format!("{path}/")),
        };
        let display = format!("{}://{user}{name}{shown}{}", url.scheme, options.query());
        let host = endpoint.host_header();
        let route = Route::of(endpoint.address(), security, environment)?;
        Ok(Place { route, name, prefix, region, host, settings, display })
    }

    /// See [`Location::unverified`](crate::backend::Location::unverified).
    pub fn unverified(&self) -> Option<String> {
        match &self.route.security.tls {
            None => Some("use an endpoint= with https://".to_owned()),
            Some(_) => self.route.security.unverified(),
        }
    }
}
