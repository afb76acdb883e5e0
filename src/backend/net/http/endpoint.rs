//! A server that is named by a URL with `http:` or `https:`, as clients of AWS and Kubernetes configure them.

use super::{Client, Method, Reply, Route, request};
use crate::backend::StoreError;
use crate::backend::net::{Address, COMMON, Pem, Security};
use crate::backend::options::Options;
use crate::backend::url::{Environment, Host, Url, UrlError};

/// A server.
#[derive(Clone)]
pub struct Endpoint {
    /// As in the URL.
    pub host: Host,
    /// It is asked over TLS.
    pub is_secure: bool,
    /// From the slash on, with the query; empty without a slash.
    pub path: String,
}

impl Endpoint {
    /// Reads `http[s]://host[:port][/path][?query]`.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(text: &str) -> Result<Endpoint, UrlError> {
        let wrong = || UrlError::new("an endpoint is http://HOST[:PORT] or https://HOST[:PORT]");
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let is_secure = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        // What could be a password is never repeated.
        let url = Url::parse(&format!("{scheme}://{authority}")).map_err(|_| wrong())?;
        match url.hosts.as_slice() {
            [host] if url.username.is_none() && url.password.is_none() => {
                Ok(Endpoint { host: host.clone(), is_secure, path: path.to_owned() })
            }
            _ => Err(wrong()),
        }
    }

    /// Returns its address.
    pub fn address(&self) -> Address {
        Address::of(&self.host, if self.is_secure { 443 } else { 80 })
    }

    /// Returns its name in the header `Host`, which a signature covers.
    pub fn host_header(&self) -> String {
        let is_usual = self.host.port == Some(if self.is_secure { 443 } else { 80 });
        Host { port: self.host.port.filter(|_| !is_usual), ..self.host.clone() }.to_string()
    }

    /// Returns how it is reached, with the certificate authorities of this host and no credentials.
    ///
    /// # Errors
    /// Its name cannot be in a URL.
    pub fn security(&self) -> Result<Security, UrlError> {
        let scheme = if self.is_secure { "https" } else { "http" };
        let url = Url::parse(&format!("{scheme}://{}", self.host))?;
        Security::of_scheme(&url, &Options::of(&url, &[COMMON])?, ["http", "https"])
    }

    /// Returns a client with the certificate authorities in a file, or those of this host, and the proxy of this environment.
    ///
    /// # Errors
    /// The environment does not name an HTTP proxy.
    pub fn client(
        &self,
        authorities: Option<&str>,
        environment: Environment<'_>,
    ) -> Result<Client, StoreError> {
        let wrong = |error: UrlError| StoreError::Config(error.to_string());
        let mut security = self.security().map_err(wrong)?;
        if let (Some(tls), Some(file)) = (&mut security.tls, authorities) {
            tls.ca_file = Some(Pem::File(file.into()));
        }
        Ok(Route::of(self.address(), security, environment).map_err(wrong)?.client())
    }

    /// Sends a request to this server, and returns the reply if it has succeeded.
    ///
    /// # Errors
    /// The server cannot be reached, or does not reply properly or with success.
    pub async fn fetch(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: &str,
    ) -> Result<Reply, StoreError> {
        let unusable =
            |_| StoreError::Config("a path or header of the credentials' server cannot be used".into());
        let request = request(method, path, headers, body).map_err(unusable)?;
        let reply = self.client(None, &|_| None)?.send(request).await?;
        if reply.status.is_success() { Ok(reply) } else { Err(reply.failure()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_server() {
        for (text, header, address, path) in [
            ("http://h", "h", "h:80", ""),
            ("https://h:443/", "h", "h:443", "/"),
            ("http://[::1]:9000/a?b=c", "[::1]:9000", "[::1]:9000", "/a?b=c"),
        ] {
            let endpoint = Endpoint::parse(text).expect(text);
            let found = (endpoint.host_header(), endpoint.address().to_string(), endpoint.path);
            assert_eq!(found, (header.to_owned(), address.to_owned(), path.to_owned()));
        }
        for wrong in ["h", "ftp://h", "http://", "http://a,b", "http://u:secret@h", "http://h:x"] {
            let error = Endpoint::parse(wrong).err().expect(wrong).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
