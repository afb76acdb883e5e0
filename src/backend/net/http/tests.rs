//! A client and a server that answers what the test says.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;
use crate::backend::net::Security;
use crate::backend::options::Options;
use crate::backend::url::Url;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What a server does with the next request: it sends this, and closes the connection or keeps it.
type Action = (String, bool);

/// Returns a client of a server that does this with the requests it gets, and those requests.
fn serve(actions: Vec<Action>) -> (Client, mpsc::UnboundedReceiver<String>) {
    let directory = std::env::temp_dir().join(format!("dlock-http-{}", crate::random::id()));
    let listener = UnixListener::bind(&directory).expect("a socket");
    let (sender, requests) = mpsc::unbounded_channel();
    let path = directory.clone();
    tokio::spawn(async move {
        let mut actions = actions.into_iter();
        let mut next = actions.next();
        while next.is_some() {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            while let Some((reply, keeps)) = next.take() {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") && !request.ends_with(b"body") {
                    if stream.read_buf(&mut request).await.unwrap_or_default() == 0 {
                        break;
                    }
                }
                if request.is_empty() {
                    next = Some((reply, keeps));
                    break;
                }
                let _ = sender.send(String::from_utf8(request).expect("text"));
                let _ = stream.write_all(reply.as_bytes()).await;
                next = actions.next();
                if !keeps {
                    break;
                }
            }
        }
        let _ = std::fs::remove_file(path);
    });
    let url = Url::parse("consul://h").expect("a URL");
    let options = Options::of(&url, &[crate::backend::net::COMMON]).expect("no options");
    let security = Security::of_scheme(&url, &options, ["consul", "consuls"]).expect("no TLS");
    let route = Route { address: Address::Socket(directory), security, proxy: None };
    (route.client(), requests)
}

fn keeping(replies: &[&str]) -> Vec<Action> {
    replies.iter().map(|reply| ((*reply).to_owned(), true)).collect()
}

fn request(method: Method, path: &str, body: &str) -> Request {
    super::request(method, path, &[("x-token", "t")], body).expect("a request")
}

async fn get(client: &mut Client) -> Result<Reply, StoreError> {
    client.send(request(Method::GET, "/v1/x?y=%2F", "")).await
}

#[tokio::test]
async fn requests_share_one_connection() {
    let chunked = "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                   Retry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    let (mut client, mut requests) = serve(keeping(&[chunked, OK]));
    let reply = get(&mut client).await.expect("a reply");
    assert_eq!((reply.status.as_u16(), reply.body.as_slice()), (404, &b"abcde"[..]));
    assert_eq!(reply.date(), Some(Duration::from_secs(784_111_777)));
    assert_eq!(reply.retry_after(), Some(Duration::from_secs(60)));
    let reply = client.send(request(Method::PUT, "/", "the body")).await.expect("a reply");
    assert_eq!((reply.date(), reply.retry_after()), (None, None));
    let first = requests.recv().await.expect("a request").to_lowercase();
    assert!(first.starts_with("get /v1/x?y=%2f http/1.1\r\n"), "{first}");
    assert!(first.contains("host: localhost\r\n") && first.contains("x-token: t\r\n"), "{first}");
    let second = requests.recv().await.expect("a request").to_lowercase();
    assert!(second.contains("content-length: 8\r\n") && second.ends_with("\r\n\r\nthe body"), "{second}");
}

#[tokio::test]
async fn a_request_is_sent_over_another_connection_only_if_nothing_of_it_was_sent() {
    let ended =
        vec![(OK.to_owned(), false), (OK.to_owned(), true), (String::new(), false), (OK.to_owned(), true)];
    let (mut client, mut requests) = serve(ended);
    get(&mut client).await.expect("a reply");
    sleep(Duration::from_millis(50)).await;
    get(&mut client).await.expect("the end of an idle connection is no failure");
    let lost = get(&mut client).await.expect_err("the reply is lost");
    assert!(matches!(lost, StoreError::Unavailable { maybe_applied: true, .. }), "{lost:?}");
    get(&mut client).await.expect("a reply");
    let mut count = 0;
    while requests.try_recv().is_ok() {
        count += 1;
    }
    assert_eq!(count, 4);
}

#[tokio::test]
async fn a_request_that_is_given_up_takes_its_connection_with_it() {
    let late = vec![(String::new(), true), (OK.to_owned(), true)];
    let (mut client, mut requests) = serve(late);
    let given_up = tokio::time::timeout(Duration::from_millis(50), get(&mut client)).await;
    assert!(given_up.is_err());
    assert!(requests.recv().await.is_some() && client.connection.is_none());
    assert_eq!(get(&mut client).await.expect("a reply").body, b"ok");
    assert!(client.connect().now_or_never().is_some(), "it is connected");
}

#[tokio::test]
async fn what_is_not_a_success_is_explained_and_not_followed() {
    let long = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}",
        LONGEST_BODY + 1,
        "x".repeat(LONGEST_BODY + 1)
    );
    let far = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://other/{}\r\nContent-Length: 0\r\n\r\n",
        "x".repeat(10_000)
    );
    let (mut client, _requests) = serve(keeping(&[
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nslow",
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n",
        &far,
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\n\r\nACL\nnot\n",
        "HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\nwrong",
        "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        &long,
    ]));
    let mut failure = async || get(&mut client).await.map(|reply| reply.failure());
    let later = |reason: &str| StoreError::Unavailable {
        reason: reason.to_owned(),
        maybe_applied: true,
        outlook: Outlook::Transient,
    };
    let slow = "the server replies 429 Too Many Requests: slow; it asks to wait 7s";
    assert_eq!(failure().await, Ok(later(slow)));
    assert_eq!(failure().await, Ok(later("the server replies 503 Service Unavailable")));
    let elsewhere = "the server redirects to http://other/: name the server itself";
    assert_eq!(failure().await, Ok(StoreError::Config(elsewhere.into())));
    let cut = "x".repeat(SHOWN - "http://other/".len());
    let elsewhere = format!("the server redirects to http://other/{cut}: name the server itself");
    assert_eq!(failure().await, Ok(StoreError::Config(elsewhere)));
    assert_eq!(failure().await, Ok(StoreError::Denied("the server replies 403 Forbidden: ACL not".into())));
    let wrong = "the server replies 500 Internal Server Error: wrong";
    assert_eq!(failure().await, Ok(StoreError::unanswered(wrong)));
    let idle = "the server replies 408 Request Timeout";
    assert_eq!(failure().await, Ok(StoreError::unanswered(idle)));
    let page = "the server replies 502 Bad Gateway: a web page: another server or a proxy has answered";
    assert_eq!(failure().await, Ok(StoreError::unanswered(page)));
    let long = "the server sends a reply of more than 4 MiB";
    assert_eq!(failure().await, Err(StoreError::Config(long.into())));
}

#[tokio::test]
async fn another_protocol_is_not_a_lost_reply() {
    let (mut client, _requests) = serve(keeping(&["-ERR unknown command\r\n"]));
    let error = get(&mut client).await.expect_err("no HTTP");
    assert_eq!(error, StoreError::Config("the server does not speak HTTP/1.1".into()));
}
