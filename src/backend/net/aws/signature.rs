//! Signature version 4 (<https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>).

use hyper::http::header::{AUTHORIZATION, HOST};
use hyper::http::{HeaderName, HeaderValue};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest, Sha256};

use super::keys::Keys;
use crate::backend::StoreError;
use crate::backend::net::http::Request;
use crate::clock::wall_micros;
use crate::hex;

/// What is not encoded in a path and a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The length of a block of SHA-256.
const BLOCK: usize = 64;

/// What a signature is valid for.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The region, ...
    pub region: &'a str,
    /// ... and the service, as AWS abbreviates it.
    pub service: &'a str,
}

/// Returns a part of a path, or a word of a query, as AWS encodes it.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Signs a request, with all headers that it has and those that are added: for this host, at the present time by its wall
/// clock. Its path and query are encoded by [`encoded`]; for other services than S3, its path is `/`.
///
/// # Errors
/// A key or a host cannot be part of a header.
pub fn sign(request: &mut Request, host: &str, keys: &Keys, scope: Scope<'_>) -> Result<(), StoreError> {
    let seconds = i64::try_from(wall_micros() / 1_000_000).unwrap_or_default();
    sign_at(request, host, keys, scope, seconds)
}

/// The same at this time, in seconds since 1970.
fn sign_at(
    request: &mut Request,
    host: &str,
    keys: &Keys,
    scope: Scope<'_>,
    seconds: i64,
) -> Result<(), StoreError> {
    let instant = Timestamp::from_second(seconds).unwrap_or_default();
    let time = instant.strftime("%Y%m%dT%H%M%SZ").to_string();
    let body = hex::encode(&Sha256::digest(request.body()));
    let mut added = vec![(HOST.as_str(), host), ("x-amz-date", &time)];
    added.extend((scope.service == "s3").then_some(("x-amz-content-sha256", body.as_str())));
    added.extend(keys.session.as_deref().map(|session| ("x-amz-security-token", session)));
    for (name, value) in added {
        request.headers_mut().insert(HeaderName::from_static(name), header(value)?);
    }
    let mut headers: Vec<(&str, &str)> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap_or_default().trim()))
        .collect();
    headers.sort_unstable();
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let mut query: Vec<String> = request
        .uri()
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'))
        .map(|pair| if pair.contains('=') { pair.to_owned() } else { format!("{pair}=") })
        .collect();
    query.sort_unstable();
    let (method, path, query) = (request.method(), request.uri().path(), query.join("&"));
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{body}");
    let (date, Scope { region, service }) = (&time[..8], scope);
    let scope = format!("{date}/{region}/{service}/aws4_request");
    let digest = hex::encode(&Sha256::digest(canonical));
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
    let start = format!("AWS4{}", keys.secret).into_bytes();
    let words = [date, region, service, "aws4_request", &to_sign];
    let signature = words.iter().fold(start, |key, word| hmac(&key, word.as_bytes()).to_vec());
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={}",
        keys.id,
        hex::encode(&signature)
    );
    let mut authorization = header(&authorization)?;
    authorization.set_sensitive(true);
    request.headers_mut().insert(AUTHORIZATION, authorization);
    Ok(())
}

fn header(value: &str) -> Result<HeaderValue, StoreError> {
    let wrong = "the host or the credentials have a character that no header can have";
    HeaderValue::try_from(value).map_err(|_| StoreError::Config(wrong.into()))
}

/// RFC 2104 with SHA-256.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    match key.len() <= BLOCK {
        true => block[..key.len()].copy_from_slice(key),
        false => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let padded = |pad: u8| block.map(|byte| byte ^ pad);
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

    fn request(method: &str, uri: &str, headers: &[(&'static str, &str)], body: &str) -> Request {
        let mut request = Request::new(body.to_owned());
        *request.method_mut() = method.parse().expect("a method");
        *request.uri_mut() = uri.parse().expect("a path");
        for (name, value) in headers {
            request.headers_mut().insert(HeaderName::from_static(name), header(value).expect("a value"));
        }
        request
    }

    fn signature(mut request: Request, host: &str, keys: &Keys, service: &str, time: &str) -> String {
        let seconds = time.parse::<Timestamp>().expect("a time").as_second();
        let scope = Scope { region: "us-east-1", service };
        sign_at(&mut request, host, keys, scope, seconds).expect("signed");
        let header = request.headers()["authorization"].to_str().expect("text");
        header.rsplit_once('=').expect("a signature").1.to_owned()
    }

    /// Signature Version 4 test suite (`get-vanilla`, `post-vanilla`, `get-vanilla-query-order-key-case`), which is part of
    /// botocore (`tests/unit/auth/aws4_testsuite`).
    #[test]
    fn the_test_suite_of_aws_is_signed_as_published() {
        let keys = Keys::new("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None);
        let sign =
            |request| signature(request, "example.amazonaws.com", &keys, "service", "2015-08-30T12:36:00Z");
        assert_eq!(
            sign(request("GET", "/", &[], "")),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
        );
        assert_eq!(
            sign(request("POST", "/", &[], "")),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
        );
        assert_eq!(
            sign(request("GET", "/?Param2=value2&Param1=value1", &[], "")),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"
        );
    }

    /// The examples of "Signature Calculations for the Authorization Header" in the API reference of S3.
    #[test]
    fn the_examples_of_s3_are_signed_as_published() {
        let keys = Keys::new("AKIAIOSFODNN7EXAMPLE", SECRET, None);
        let sign = |request| {
            signature(request, "examplebucket.s3.amazonaws.com", &keys, "s3", "2013-05-24T00:00:00Z")
        };
        assert_eq!(
            sign(request("GET", "/test.txt", &[("range", "bytes=0-9")], "")),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        let date = ("date", "Fri, 24 May 2013 00:00:00 GMT");
        let class = ("x-amz-storage-class", "REDUCED_REDUNDANCY");
        assert_eq!(
            sign(request("PUT", "/test%24file.text", &[date, class], "Welcome to Amazon S3.")),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
        assert_eq!(
            sign(request("GET", "/?lifecycle", &[], "")),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            sign(request("GET", "/?max-keys=2&prefix=J", &[], "")),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    /// RFC 4231, test cases 2 and 6.
    #[test]
    fn keys_are_shortened_if_they_are_longer_than_a_block() {
        let case = |key: &[u8], message: &str| hex::encode(&hmac(key, message.as_bytes()));
        assert_eq!(
            case(b"Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            case(&[0xaa; 131], "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }
}
