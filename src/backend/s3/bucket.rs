//! The requests to a bucket, and what its replies say.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::location::Location;
use crate::backend::StoreError;
use crate::backend::ledger::dated::check_count;
use crate::backend::ledger::polling::Shown;
use crate::backend::net::aws::{Place, Signed, element, elements, encoded, expired, lacks_right, skewed};
use crate::backend::net::http::{Client, Method, Reply, request, shown};
use crate::lock::LockName;

/// A key that was refused for one of these reasons may have been replaced at its source.
const REPLACED: [&str; 4] = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId"];
/// The object still has the entity tag that was named.
pub(super) const NOT_MODIFIED: u16 = 304;
/// The store has not carried out the request.
const CONFLICT: u16 = 409;
const PRECONDITION_FAILED: u16 = 412;

/// A client of a bucket.
pub(super) struct Bucket {
    /// Where it is.
    pub location: Location,
    /// Its requests.
    pub client: Signed,
    /// What the store's clock has shown last.
    pub clock: Option<Shown>,
}

impl Bucket {
    /// Returns a client with this connection.
    pub fn with(http: Client, location: &Location) -> Bucket {
        Bucket { location: location.clone(), client: Signed::with(http, &location.place, "s3"), clock: None }
    }

    /// Returns a client with the same credentials and a connection of its own.
    pub fn twin(&self) -> Bucket {
        Bucket { location: self.location.clone(), client: self.client.twin(), clock: self.clock }
    }

    /// Reads an object, unless it still has this entity tag. Returns the reply: with the object, or without it (304, 404).
    ///
    /// # Errors
    /// The store cannot be reached, refuses, or does not reply as S3 does.
    pub async fn get(&mut self, key: &str, known: Option<&str>) -> Result<Reply, StoreError> {
        let path = self.location.path(key);
        let headers: Vec<_> = known.map(|tag| ("if-none-match", tag)).into_iter().collect();
        let reply = self.ask(Method::GET, &path, &headers, "").await?;
        match reply.status.as_u16() {
            200 => {}
            NOT_MODIFIED if known.is_some() => {}
            404 if code(&reply).as_deref() == Some("NoSuchKey") => {}
            _ => return Err(self.failure(&reply, "s3:GetObject (and s3:ListBucket)").await),
        }
        self.location.place.route.recognize();
        Ok(reply)
    }

    /// Writes an object if it still has this entity tag, or does not exist, without one. Returns its entity tag; `None` if it
    /// had another one, or was being written by another client, or the reply does not say: perhaps it is stored.
    ///
    /// # Errors
    /// The store cannot be reached or does not reply, so that the object may be written; or it refuses.
    pub async fn put(
        &mut self,
        key: &str,
        version: Option<&str>,
        content: &str,
    ) -> Result<Option<String>, StoreError> {
        let path = self.location.path(key);
        let checksum = STANDARD.encode(Sha256::digest(content));
        let condition = version.map_or(("if-none-match", "*"), |tag| ("if-match", tag));
        let headers =
            [condition, ("content-type", "application/json"), ("x-amz-checksum-sha256", checksum.as_str())];
        let reply = self.ask(Method::PUT, &path, &headers, content).await?;
        match reply.status.as_u16() {
            200 => Ok(reply.header("etag").map(str::to_owned)),
            PRECONDITION_FAILED | CONFLICT => Ok(None),
            // The object to be replaced has been deleted.
            404 if version.is_some() && code(&reply).as_deref() == Some("NoSuchKey") => Ok(None),
            501 => Err(StoreError::Config(
                "the store does not support conditional writes (If-Match, If-None-Match), so it cannot hold locks".into(),
            )),
            _ => Err(self.failure(&reply, "s3:PutObject").await),
        }
    }

    /// Returns the keys of all locks, with the name of each, if its key contains it.
    ///
    /// # Errors
    /// As of [`get`](Bucket::get), or there are too many.
    pub async fn list(&mut self) -> Result<Vec<(String, Option<LockName>)>, StoreError> {
        let (mut locks, mut next) = (Vec::new(), None::<String>);
        loop {
            let mut query = format!("prefix={}", encoded(&self.location.place.prefix));
            if let Some(token) = &next {
                query += &format!("&continuation-token={}", encoded(token));
            }
            let xml = self.listing(&query).await?;
            for key in elements(&xml, "Key") {
                if let Some(name) = self.location.name_of(&key) {
                    locks.push((key, name.ok()));
                }
            }
            check_count(locks.len())?;
            let token = element(&xml, "NextContinuationToken").filter(|token| !token.is_empty());
            if token.is_none() || token == next {
                return Ok(locks);
            }
            next = token;
        }
    }

    /// Lists the objects that this query selects, and returns the reply in XML.
    ///
    /// # Errors
    /// As of [`get`](Bucket::get).
    pub async fn listing(&mut self, query: &str) -> Result<String, StoreError> {
        let xml = self.query(&format!("list-type=2&{query}"), "s3:ListBucket").await?;
        // Any web server may reply with a page.
        xml.contains("<ListBucketResult").then_some(xml).ok_or_else(|| StoreError::Config(NOT_S3.into()))
    }

    /// Asks for a property of the bucket, and returns the reply in XML.
    ///
    /// # Errors
    /// As of [`get`](Bucket::get).
    pub async fn query(&mut self, query: &str, action: &str) -> Result<String, StoreError> {
        let base = self.location.base.clone();
        let reply = self.ask(Method::GET, &format!("{base}/?{query}"), &[], "").await?;
        match reply.status.is_success() {
            true => Ok(String::from_utf8_lossy(&reply.body).into_owned()),
            false => Err(self.failure(&reply, action).await),
        }
    }

    /// Sends a signed request, and returns the reply, of whatever status.
    async fn ask(
        &mut self,
        method: Method,
        uri: &str,
        headers: &[(&'static str, &str)],
        body: &str,
    ) -> Result<Reply, StoreError> {
        let request = request(method, uri, headers, body)?;
        let is_of_key = |reply: &Reply| code(reply).is_some_and(|code| REPLACED.contains(&code.as_str()));
        let reply = self.client.send(request, is_of_key).await?;
        let shown = reply.date().map(|date| Shown { date, sent: reply.sent, received: reply.received });
        self.clock = shown.or(self.clock);
        Ok(reply)
    }

    /// Returns the error that a reply without success means, to a request that needs the right to this action.
    async fn failure(&self, reply: &Reply, action: &str) -> StoreError {
        let Place { name: bucket, region, route, .. } = &self.location.place;
        let error = code(reply);
        let xml = text(reply);
        let home = reply.header("x-amz-bucket-region").map(str::to_owned).or_else(|| element(&xml, "Region"));
        if let Some(home) =
            home.filter(|home| home != region && matches!(reply.status.as_u16(), 301 | 307 | 400))
        {
            let home = shown(&home);
            return StoreError::Config(format!(
                "the bucket {bucket} is in the region {home}, not in {region}: set region={home}"
            ));
        }
        let said = element(&xml, "Message").map(|said| shown(&said)).unwrap_or_default();
        match error.as_deref() {
            Some("NoSuchBucket") => StoreError::Config(format!(
                "there is no bucket {bucket} in {region}: create it, or check its name and endpoint="
            )),
            Some("RequestTimeTooSkewed") => skewed(reply),
            Some("RequestTimeout") => StoreError::unanswered(format!("the request took too long: {said}")),
            Some("AccessDenied") => lacks_right(&format!("{action} in the bucket {bucket}"), &said),
            Some(code @ ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")) => expired(code, &said),
            Some(code) if matches!(reply.status.as_u16(), 401 | 403) => {
                StoreError::Denied(format!("the store replies {}: {said}", shown(code)))
            }
            // Any web server may reply so.
            None if reply.status.as_u16() == 404 => route.mismatch(StoreError::Config(NOT_S3.into())).await,
            Some(code) => reply.failure_saying(format!("{}: {said}", shown(code))),
            None => reply.failure(),
        }
    }
}

const NOT_S3: &str = "the server does not reply as S3 does: check endpoint= and path_style=";

fn text(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

/// Returns the code of the error in a reply.
fn code(reply: &Reply) -> Option<String> {
    if reply.status.is_success() { None } else { element(&text(reply), "Code") }
}
