//! A fake bucket, which keeps some rules of S3 and breaks others.

use crate::support::web::{Answer, Asked, Web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a fake bucket does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Nothing,
    /// It accepts conditions and ignores them.
    IgnoresConditions,
    /// Between the check of a condition and the write, another write may be checked.
    IsNotAtomic,
    /// Whatever is in front of it sends each write twice, and passes on the second reply.
    RepeatsWrites,
    /// Each second write is answered by 409, although it is carried out.
    Conflicts,
    /// Each third request is answered by 429, and not carried out.
    IsBusy,
    /// From the first of these requests to the last one, each is answered by 503, and not carried out.
    AsksForPauses(u64, u64),
    /// The clock of the server that reads are sent to is 3 s behind that of the one for writes.
    ReadsAreBehind,
    /// It keeps every version of each object for a time, and removes it then.
    RetainsVersions,
    /// From the reply to this request on, its clock is 20 s ahead, as after a pause of the client's host.
    ClockJumps(u64),
}

/// Objects and their versions.
type Objects = Mutex<HashMap<String, (Vec<u8>, u64)>>;

/// Starts one.
pub fn start(fault: Fault) -> Web {
    let (objects, count) = (Objects::default(), Mutex::new(0_u64));
    Web::start(move |asked| {
        let number = {
            let mut count = count.lock().unwrap();
            *count += 1;
            *count
        };
        let (status, mut headers, body) = answer(fault, number, &objects, asked);
        if matches!(fault, Fault::ClockJumps(first) if first <= number) {
            set_date(&mut headers, SystemTime::now() + Duration::from_secs(20));
        }
        if fault == Fault::ReadsAreBehind && asked.method == "GET" {
            set_date(&mut headers, SystemTime::now() - Duration::from_secs(3));
        }
        Some((status, headers, body))
    })
}

fn set_date(headers: &mut [(&'static str, String)], time: SystemTime) {
    headers.iter_mut().filter(|(name, _)| *name == "Date").for_each(|(_, value)| *value = date(time));
}

/// The URL of a bucket on this port.
pub fn url(port: u16) -> String {
    format!("s3://key:secret@b/p?endpoint=http://127.0.0.1:{port}")
}

fn answer(fault: Fault, number: u64, objects: &Objects, asked: &Asked) -> Answer {
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    if fault == Fault::IsBusy && number % 3 == 2 {
        return error(429, "TooManyRequests");
    }
    if matches!(fault, Fault::AsksForPauses(first, last) if (first..=last).contains(&number)) {
        return error(503, "SlowDown");
    }
    match asked.method.as_str() {
        "GET" if path == "/b/" => {
            let retains = fault == Fault::RetainsVersions;
            let body = match query.split(['=', '&']).next() {
                Some("list-type") => "<ListBucketResult/>",
                Some("versioning") if retains => "<Versioning><Status>Enabled</Status></Versioning>",
                Some("lifecycle") if retains => {
                    "<Rule><Status>Enabled</Status><NoncurrentVersionExpiration></NoncurrentVersionExpiration></Rule>"
                }
                Some("object-lock") if retains => "<Rule><DefaultRetention></DefaultRetention></Rule>",
                _ => "<VersioningConfiguration/>",
            };
            reply(200, None, body.to_owned())
        }
        "GET" => match objects.lock().unwrap().get(path) {
            Some((body, version)) => reply(200, Some(*version), String::from_utf8(body.clone()).unwrap()),
            None => error(404, "NoSuchKey"),
        },
        _ => {
            let first = put(fault, number, objects, path, asked);
            match fault {
                Fault::RepeatsWrites => put(fault, number, objects, path, asked),
                Fault::Conflicts if number.is_multiple_of(2) => error(409, "ConditionalRequestConflict"),
                _ => first,
            }
        }
    }
}

fn put(fault: Fault, number: u64, objects: &Objects, path: &str, asked: &Asked) -> Answer {
    let sum = STANDARD.encode(Sha256::digest(&asked.body));
    if asked.header("x-amz-checksum-sha256") != Some(&sum) {
        return error(400, "BadDigest");
    }
    let is_met = |objects: &HashMap<String, (Vec<u8>, u64)>| {
        let version = objects.get(path).map(|(_, version)| format!("\"{version}\""));
        fault == Fault::IgnoresConditions
            || match asked.header("if-match") {
                Some(expected) => version.as_deref() == Some(expected),
                None => version.is_none(),
            }
    };
    if fault == Fault::IsNotAtomic {
        if !is_met(&objects.lock().unwrap()) {
            return error(412, "PreconditionFailed");
        }
        std::thread::sleep(Duration::from_millis(5));
        objects.lock().unwrap().insert(path.to_owned(), (asked.body.clone(), number));
        return reply(200, Some(number), String::new());
    }
    let mut objects = objects.lock().unwrap();
    if !is_met(&objects) {
        return error(412, "PreconditionFailed");
    }
    objects.insert(path.to_owned(), (asked.body.clone(), number));
    reply(200, Some(number), String::new())
}

/// A reply at this moment.
pub fn reply(status: u16, version: Option<u64>, body: String) -> Answer {
    let date = date(SystemTime::now());
    let tag = version.map(|version| ("ETag", format!("\"{version}\"")));
    let headers = [("Date", date.clone()), ("Last-Modified", date)].into_iter().chain(tag);
    (status, headers.collect(), body)
}

/// An error in the form of S3.
pub fn error(status: u16, code: &str) -> Answer {
    reply(status, None, format!("<Error><Code>{code}</Code><Message>said</Message></Error>"))
}

/// A time as in the headers of HTTP.
pub fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let time = jiff::Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap();
    time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}
