//! Which proxy is used for which server.

use super::*;
use crate::backend::url::Host;

fn of(host: &str, is_secure: bool, variables: &[(&str, &str)]) -> Result<String, String> {
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let server = Address::of(&Host { name: host.to_owned(), port: None }, 8500);
    let proxy = Proxy::of(&server, is_secure, &variable).map_err(|error| error.to_string())?;
    Ok(proxy.map(|proxy| proxy.to_string()).unwrap_or_default())
}

#[test]
fn the_variables_are_those_of_curl() {
    for (is_secure, variables, expected) in [
        (
            false,
            &[("http_proxy", "http://p:1"), ("https_proxy", "http://q")][..],
            "the proxy p:1 (http_proxy)",
        ),
        (
            true,
            &[("http_proxy", "http://p:1"), ("https_proxy", "http://q")],
            "the proxy q:1080 (https_proxy)",
        ),
        (false, &[("HTTP_PROXY", "http://p"), ("HTTPS_PROXY", "http://q")], ""),
        (true, &[("HTTP_PROXY", "http://p"), ("HTTPS_PROXY", "q:2/")], "the proxy q:2 (HTTPS_PROXY)"),
        (true, &[("https_proxy", ""), ("HTTPS_PROXY", "[::1]:2")], "the proxy [::1]:2 (HTTPS_PROXY)"),
        (false, &[("ALL_PROXY", "http://p"), ("HTTP_PROXY", "q")], "the proxy p:1080 (ALL_PROXY)"),
        (true, &[("ALL_PROXY", "p"), ("all_proxy", "q")], "the proxy q:1080 (all_proxy)"),
        (true, &[("https_proxy", "http://me:s%40cret@p")], "the proxy p:1080 (https_proxy)"),
        (true, &[("https_proxy", "p"), ("no_proxy", "h")], ""),
        (
            true,
            &[("https_proxy", "p"), ("no_proxy", "x"), ("NO_PROXY", "h")],
            "the proxy p:1080 (https_proxy)",
        ),
        (true, &[("https_proxy", "p"), ("no_proxy", ""), ("NO_PROXY", "*")], ""),
    ] {
        assert_eq!(of("h", is_secure, variables), Ok(expected.to_owned()), "{variables:?}");
    }
    for value in [
        "socks5h://me:secret@p",
        "https://me:secret@p",
        "ftp://me:secret@p",
        "http://me:secret@p,q",
        "me:secret@",
    ] {
        let error = of("h", true, &[("https_proxy", value)]).expect_err(value);
        assert!(error.starts_with("https_proxy: ") && !error.contains("secret"), "{error}");
        assert_eq!(of("h", true, &[("https_proxy", value), ("no_proxy", "h")]), Ok(String::new()));
    }
}

#[test]
fn hosts_are_excepted_as_in_curl() {
    for (list, host, is_excepted) in [
        ("*", "h", true),
        ("a, h", "h", true),
        ("*,x", "h", false),
        ("example.com", "www.Example.com.", true),
        (".example.com.", "example.com", true),
        ("example.com", "nonexample.com", false),
        (".", "example.com", false),
        ("10.1.2.3", "10.1.2.3", true),
        ("10.1.0.0/16", "10.1.2.3", true),
        ("10.1.0.0/33", "10.1.0.0", false),
        ("10.2.0.0/16,3", "10.1.2.3", false),
        ("0.0.0.0/0", "10.1.2.3", false),
        ("::1", "::1", true),
        ("fe80::/10", "febf::1", true),
        ("fe80::/10", "fec0::1", false),
        ("::/96", "0.0.0.1", false),
    ] {
        assert_eq!(is_listed(list, host), is_excepted, "{list} {host}");
    }
}
