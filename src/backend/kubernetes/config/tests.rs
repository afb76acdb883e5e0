//! Kubeconfigs in files, and what a pod has.

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::backend::net::Pem;

/// A certificate is not parsed before a connection is opened.
const PEM: &str = "Q0VSVA==";

fn files(all: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in all {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    directory
}

/// Reads these files of the directory, as `KUBECONFIG` lists them.
fn read(directory: &TempDir, list: &[&str], context: Option<&str>) -> Result<Cluster, UrlError> {
    let paths = std::env::join_paths(list.iter().map(|name| directory.path().join(name))).expect("a list");
    let paths = paths.into_string().expect("UTF-8");
    Cluster::read(context, &|name| (name == "KUBECONFIG").then(|| paths.clone()))
}

fn error(directory: &TempDir, list: &[&str], context: Option<&str>) -> String {
    let error = read(directory, list, context).err().expect("an error").to_string();
    assert!(!error.contains("hunter2"), "{error}");
    error.replace(&directory.path().display().to_string(), "")
}

/// Returns a kubeconfig with one cluster, one user and one context, each `x`.
fn config(cluster: &str, user: &str) -> String {
    format!(
        "current-context: x\nclusters: [{{name: x, cluster: {cluster}}}]\nusers: [{{name: x, user: {user}}}]\n\
         contexts: [{{name: x, context: {{cluster: x, user: x, namespace: jobs}}}}]\n"
    )
}

fn header(cluster: &Cluster) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let header = runtime.block_on(cluster.authorization()).expect("credentials");
    header.map(|value| value.to_str().expect("ASCII").to_owned()).unwrap_or_default()
}

#[test]
fn what_several_files_have_the_first_one_has() {
    let first = "contexts:\n- {name: a, context: {cluster: one, user: me}}\nclusters:\n- name: one\n  cluster:\n    server: \
                 https://first:6443/k8s/c-1/\n    certificate-authority: ca.pem\n";
    let second = "current-context: a\nclusters:\n- {name: one, cluster: {server: 'https://second'}}\n- {name: two, cluster: \
                  {server: 'http://two:8080'}}\nusers:\n- {name: me, user: {tokenFile: token}}\ncontexts:\n- {name: a, context: \
                  {cluster: two}}\n- {name: b, context: {cluster: two, namespace: jobs, user: me}}\n";
    let all = [
        ("one/config", first),
        ("one/ca.pem", ""),
        ("two/config", second),
        ("two/token", " t0ken-of-the-second-file\n"),
    ];
    let directory = files(&all);
    let both = ["missing", "one/config", "two/config"];
    let cluster = read(&directory, &both, None).expect("a cluster");
    assert_eq!(cluster.route.address.to_string(), "first:6443");
    assert_eq!((cluster.path.as_str(), cluster.namespace.as_deref()), ("/k8s/c-1", None));
    let authority = cluster.route.security.tls.as_ref().and_then(|tls| tls.ca_file.clone());
    assert_eq!(authority, Some(Pem::File(directory.path().join("one/ca.pem"))));
    assert_eq!(header(&cluster), "Bearer t0ken-of-the-second-file");
    fs::write(directory.path().join("two/token"), "t0ken-that-is-renewed").expect("a file");
    assert_eq!(header(&cluster), "Bearer t0ken-that-is-renewed");
    // Without TLS, nothing is sent to log in.
    let other = read(&directory, &both, Some("b")).expect("a cluster");
    assert_eq!((other.route.address.to_string().as_str(), header(&other).as_str()), ("two:8080", ""));
    assert_eq!(other.namespace.as_deref(), Some("jobs"));
}

#[test]
fn the_usual_file_is_in_the_home() {
    let text =
        config("{server: 'https://h', tls-server-name: other}", "{username: me, password: hunter2-passw0rd}");
    let directory = files(&[(".kube/config", &text)]);
    let home = directory.path().display().to_string();
    let cluster = Cluster::read(None, &|name| (name == "HOME").then(|| home.clone())).expect("a cluster");
    assert_eq!(header(&cluster), "Basic bWU6aHVudGVyMi1wYXNzdzByZA==");
    assert_eq!(cluster.route.security.tls.as_ref().and_then(|tls| tls.server_name.as_deref()), Some("other"));
    assert_eq!(cluster.source, format!("{home}/.kube/config: context 'x'"));
    assert!(cluster.route.proxy.is_none());
}

#[test]
fn data_in_the_file_count_before_other_files() {
    let user = format!(
        "{{client-certificate-data: {PEM}, client-certificate: no, client-key-data: {PEM}, token: hunter2-token-0123}}"
    );
    let cluster =
        format!("{{server: 'https://h', certificate-authority-data: {PEM}, proxy-url: 'http://p:3128'}}");
    let directory = files(&[("c", &config(&cluster, &user))]);
    let cluster = read(&directory, &["c"], Some("x")).expect("a cluster");
    let tls = cluster.route.security.tls.as_ref().expect("TLS");
    for pem in [&tls.ca_file, &tls.cert_file, &tls.key_file] {
        assert_eq!(pem.as_ref().expect("PEM").read().expect("PEM"), b"CERT");
    }
    let shown = format!("{tls:?}").replace(&directory.path().display().to_string(), "");
    assert!(shown.contains("/c: user 'x': client-key-data") && !shown.contains("CERT"), "{shown}");
    assert_eq!(header(&cluster), "Bearer hunter2-token-0123");
    let proxy = cluster.route.proxy.map(|proxy| proxy.to_string());
    assert_eq!(proxy.as_deref(), Some("the proxy p:3128 (proxy-url)"));
}

#[test]
fn an_error_names_the_file_the_part_and_what_to_do() {
    let server = "{server: 'https://h'}";
    for (cluster, user, expected) in [
        ("{}", "{}", "/c: cluster 'x': server is missing"),
        ("{server: 'ftp://h'}", "{}", "/c: cluster 'x': an endpoint is http"),
        (
            "{server: 'https://h', insecure-skip-tls-verify: true}",
            "{}",
            "/c: cluster 'x': insecure-skip-tls-verify: ",
        ),
        (
            "{server: 'https://h', proxy-url: 'socks5://u:hunter2@p'}",
            "{}",
            "/c: cluster 'x': proxy-url: not http://",
        ),
        ("{server: 'https://h', certificate-authority: gone}", "{}", "/gone: no such file or directory"),
        (
            "{server: 'https://h', certificate-authority-data: hunter2}",
            "{}",
            "certificate-authority-data is not base64",
        ),
        (
            server,
            "{client-key-data: aHVudGVyMg==}",
            "/c: context 'x': client-certificate and client-key in the kubeconfig are needed together: add the other one",
        ),
        (server, "{as: root}", "/c: user 'x': as: dlock does not act as another"),
        (server, "{auth-provider: {name: gcp}}", "auth-provider: it is obsolete"),
        (server, "{exec: {command: p, apiVersion: v0}}", "/c: user 'x': exec: apiVersion is not client.auth"),
        (
            server,
            "{exec: {apiVersion: client.authentication.k8s.io/v1}}",
            "/c: user 'x': exec: command is missing",
        ),
    ] {
        let directory = files(&[("c", &config(cluster, user))]);
        let found = error(&directory, &["c"], None);
        assert!(found.contains(expected), "{found}");
    }
    let directory =
        files(&[("c", "contexts: [{name: x, context: {cluster: y}}]"), ("d", "a: 'hunter2"), ("e", "\u{1}")]);
    for (file, context, expected) in [
        ("c", None, "/c: there is no current context: add context=, or run kubectl config use-context"),
        ("c", Some("z"), "there is no context 'z' in /c: see kubectl config view"),
        ("c", Some("x"), "there is no cluster 'y' in /c: see kubectl config view"),
        ("gone", Some("x"), "/gone: no such file or directory"),
        ("gone", None, "/gone: no such file or directory"),
    ] {
        assert_eq!(error(&directory, &[file], context), expected);
    }
    assert!(error(&directory, &["c", "d"], None).starts_with("/d: not a kubeconfig: line 1: "));
}

#[test]
fn a_pod_has_a_service_account() {
    let directory = files(&[("ca.crt", ""), ("token", "t0ken-of-the-pod\n"), ("namespace", "jobs\n")]);
    let variable = |name: &str| match name {
        "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
        "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
        _ => None,
    };
    let config = Kubeconfig(vec![of_pod(directory.path(), &variable).expect("a pod")]);
    let cluster = Cluster::of(&config, None, &variable).expect("a cluster");
    assert_eq!(
        (cluster.route.address.to_string().as_str(), cluster.route.security.tls.is_some()),
        ("[fd00::1]:443", true)
    );
    assert_eq!(
        (cluster.namespace.as_deref(), header(&cluster).as_str()),
        (Some("jobs"), "Bearer t0ken-of-the-pod")
    );
    fs::write(directory.path().join("token"), "t0ken-of-the-pod-renewed").expect("a file");
    assert_eq!(header(&cluster), "Bearer t0ken-of-the-pod-renewed");
}
