//! Kubeconfigs and what a pod has: which server is asked, and as whom.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::kubernetes::Kubernetes;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::wait::until;
use serde_json::{Value, json};
use std::path::Path;

const TOKEN: &str = "token-of-the-tests";
const KNOWN: &str = "token-of-the-tests,tester\n-,client of the tests\n";

/// A kubeconfig with one context, `a`, in the directory of the server, where its certificates are.
fn write(server: &Kubernetes, name: &str, user: &Value) -> String {
    let cluster = json!({ "server": url(server), "certificate-authority": "ca.pem" });
    write_for(server, name, &cluster, user)
}

fn write_for(server: &Kubernetes, name: &str, cluster: &Value, user: &Value) -> String {
    let path = server.daemon().directory().join(name);
    let text = json!({
        "current-context": "a",
        "clusters": [{ "name": "a", "cluster": cluster }],
        "users": [{ "name": "a", "user": user }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    std::fs::write(&path, text.to_string()).expect("a file");
    path.display().to_string()
}

fn url(server: &Kubernetes) -> String {
    format!("https://127.0.0.1:{}", server.port())
}

fn run(kubeconfig: &str, url: &str) -> Dlock {
    Dlock::run().backend(url).env("KUBECONFIG", kubeconfig).args(["--ttl", "6s"])
}

#[track_caller]
fn assert_runs(kubeconfig: &str) {
    let output = run(kubeconfig, "k8s://default").sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// One line, without secrets.
#[track_caller]
fn refused(run: Dlock, code: i32) -> String {
    let output = run.sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
    output.stderr
}

#[test]
fn several_files_are_one_configuration() {
    let server = Kubernetes::secure(KNOWN);
    let directory = server.daemon().directory();
    let cluster = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: first\nclusters:\n- name: test\n  cluster:\n    server: {}\n    \
         certificate-authority: ca.pem # beside this file\n",
        url(&server)
    );
    std::fs::write(directory.join("clusters"), cluster).expect("a file");
    let users = format!(
        "current-context: second\nusers:\n- name: me\n  user: {{token: {TOKEN}}}\n- name: other\n  user:\n    token: >-\n      \
         hunter2-token\ncontexts:\n- name: first\n  context: {{cluster: test, user: me, namespace: kube-system}}\n- name: second \
         / other\n  context: {{cluster: test, user: other}}\n"
    );
    let place = Place::new();
    let list = format!(
        "/nonexistent:{}:{}",
        directory.join("clusters").display(),
        place.write("u", &users).display()
    );
    let output = run(&list, "k8s://").sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let journal = std::fs::read_to_string(directory.join("journal")).expect("our own file");
    assert!(journal.contains(r#"["leases", "kube-system", "x"]"#), "{journal}");
    let other = refused(run(&list, "k8s://default?context=second%20/%20other"), 77);
    assert!(
        other.contains("the server does not accept the credentials (") && other.contains("'second / other'"),
        "{other}"
    );
    let neither = refused(run(&list, "k8s://default?context=third"), 78);
    assert!(neither.contains("there is no context 'third' in "), "{neither}");
}

#[test]
fn a_client_certificate_logs_in_from_a_file_or_from_the_kubeconfig() {
    let server = Kubernetes::secure(KNOWN);
    let directory = server.daemon().directory();
    let files = json!({ "client-certificate": "client.pem", "client-key": directory.join("client.key") });
    assert_runs(&write(&server, "files", &files));
    let base64 = |name: &str| {
        let encoded = std::process::Command::new("base64").arg("-w0").arg(directory.join(name)).output();
        String::from_utf8(encoded.expect("coreutils").stdout).expect("ASCII")
    };
    let data =
        json!({ "client-certificate-data": base64("client.pem"), "client-key-data": base64("client.key") });
    assert_runs(&write(&server, "data", &data));
    let swapped =
        json!({ "client-certificate-data": base64("client.pem"), "client-key-data": base64("server.key") });
    let error = refused(run(&write(&server, "swapped", &swapped), "k8s://default"), 78);
    assert!(
        error.contains("swapped: user 'a': client-key-data: this key does not fit the certificate "),
        "{error}"
    );
    // Nobody: it may do nothing.
    let error = refused(run(&write(&server, "nobody", &json!({})), "k8s://default"), 77);
    assert!(error.contains(r#"User "system:anonymous" cannot get resource "leases""#), "{error}");
}

#[test]
fn a_token_file_is_read_again() {
    let server = Kubernetes::secure(KNOWN);
    let file = server.daemon().directory().join("my-token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("a file");
    let kubeconfig = write(&server, "config", &json!({ "tokenFile": "my-token" }));
    let mut held = run(&kubeconfig, "k8s://default").sh("echo ready; read line; true");
    held = held.stdin(std::process::Stdio::piped());
    let mut held = held.spawn();
    held.await_ready();
    std::fs::write(&file, "another").expect("our own file");
    server.set_users("another,tester\n");
    let before = server.writes();
    until(SOON, "two renewals", || server.writes() >= before + 2);
    drop(held.take_stdin());
    assert_eq!(held.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

fn plugin(place: &Place, script: &str, more: Value) -> Value {
    let program = place.script("plugin", &format!("#!/bin/sh\necho run >> {}\n{script}", place.arg("runs")));
    let mut exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": program,
        "args": ["--for", "a b"],
        "env": [{ "name": "SAY", "value": TOKEN }],
        "interactiveMode": "IfAvailable",
    });
    exec.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    json!({ "exec": exec })
}

fn runs(place: &Place) -> usize {
    std::fs::read_to_string(place.path("runs")).unwrap_or_default().lines().count()
}

/// What prints these fields of a status.
fn printing(status: &str) -> String {
    let of = r#""kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1""#;
    format!("cat <<END\n{{{of},\"status\":{{{status}}}}}\nEND\n")
}

#[test]
fn a_plug_in_prints_a_token() {
    let (place, server) = (Place::new(), Kubernetes::secure(KNOWN));
    let script = format!(
        "printf %s \"$KUBERNETES_EXEC_INFO\" > {}\n[ \"$2\" = 'a b' ] && ! read -r line || exit 1\n{}",
        place.arg("info"),
        printing(r#""token":"$SAY","expirationTimestamp":"2099-01-01T00:00:00Z""#)
    );
    let kubeconfig =
        write(&server, "config", &plugin(&place, &script, json!({ "provideClusterInfo": true })));
    assert_runs(&kubeconfig);
    assert_eq!(runs(&place), 1, "for all requests");
    let info = std::fs::read_to_string(place.path("info")).expect("our own file");
    let mut info: Value = serde_json::from_str(&info).expect("JSON");
    let authority = info["spec"]["cluster"]["certificate-authority-data"].take();
    assert!(authority.as_str().is_some_and(|data| data.starts_with("LS0tLS1CRUdJTi")), "{authority}");
    let cluster = json!({ "server": url(&server), "certificate-authority-data": null });
    let expected = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "spec": { "interactive": false, "cluster": cluster },
    });
    assert_eq!(info, expected);
}

/// Its clock may be wrong, or the server may have forgotten the token.
#[test]
fn a_plug_in_is_run_again_when_its_token_is_refused_or_has_expired() {
    let (place, server) = (Place::new(), Kubernetes::secure(KNOWN));
    let end = "date -u -d '+2099 seconds' +%Y-%m-%dT%H:%M:%SZ";
    let first = printing(&format!(r#""token":"hunter2-old","expirationTimestamp":"$({end})""#));
    let script = format!(
        "if [ $(wc -l < {}) = 1 ]; then\n{first}exit; fi\n{}",
        place.arg("runs"),
        printing(r#""token":"$SAY""#)
    );
    assert_runs(&write(&server, "refused", &plugin(&place, &script, Value::Null)));
    assert_eq!(runs(&place), 2);
    let place = Place::new();
    let script =
        printing(&format!(r#""token":"$SAY","expirationTimestamp":"$({})""#, end.replace("2099", "2")));
    let kubeconfig = write(&server, "expired", &plugin(&place, &script, Value::Null));
    let mut held = run(&kubeconfig, "k8s://default").sh("echo ready; read line; true");
    held = held.stdin(std::process::Stdio::piped());
    let mut held = held.spawn();
    held.await_ready();
    let before = runs(&place);
    until(SOON, "two renewals of the token", || runs(&place) >= before + 2);
    drop(held.take_stdin());
    assert_eq!(held.wait().exit, Exit::Code(0));
}

#[test]
fn a_plug_in_prints_a_certificate() {
    let (place, server) = (Place::new(), Kubernetes::secure(KNOWN));
    let directory = server.daemon().directory();
    let text = |name: &str| format!("$(awk '{{printf \"%s\\\\n\", $0}}' {})", directory.join(name).display());
    let status = format!(
        r#""clientCertificateData":"{}","clientKeyData":"{}""#,
        text("client.pem"),
        text("client.key")
    );
    assert_runs(&write(&server, "config", &plugin(&place, &printing(&status), Value::Null)));
    assert_eq!(runs(&place), 1);
}

#[test]
fn a_plug_in_that_fails_is_named() {
    let (place, server) = (Place::new(), Kubernetes::secure(KNOWN));
    let gone = json!({ "command": "dlock-test-plugin", "installHint": "apt-get install it" });
    let v0 = json!({ "apiVersion": "client.authentication.k8s.io/v1beta1" });
    for (script, more, code, message) in [
        (
            "",
            gone,
            78,
            "config: user 'a': exec: dlock-test-plugin: the program cannot be run: no such file or directory: apt-get install it",
        ),
        ("echo hunter2", Value::Null, 77, "plugin: it printed no ExecCredential: run it to see why"),
        ("", json!({ "interactiveMode": "Always" }), 78, "user 'a': exec: interactiveMode is Always"),
        (
            &printing(r#""token":"hunter2""#),
            v0,
            77,
            "plugin: it printed no ExecCredential of the version in the kubeconfig",
        ),
        (&printing(""), Value::Null, 77, "plugin: it printed neither a token nor a certificate with its key"),
    ] {
        let kubeconfig = write(&server, "config", &plugin(&place, script, more));
        let error = refused(run(&kubeconfig, "k8s://default"), code);
        assert!(error.contains(message), "{error}");
    }
}

/// It ends with dlock, and is named.
#[test]
fn a_plug_in_that_hangs_is_named_and_killed() {
    let (place, server) = (Place::new(), Kubernetes::secure(KNOWN));
    let script = format!("echo $$ > {}\nexec sleep 600\n", place.arg("pid"));
    let kubeconfig = write(&server, "config", &plugin(&place, &script, Value::Null));
    let run = run(&kubeconfig, "k8s://default").args(["--connect-timeout", "5s"]);
    // The end of its place would end the plug-in, too.
    let _place = run.place().clone();
    let error = refused(run, 69);
    let message = "plugin has not printed credentials yet: raise --connect-timeout";
    assert!(error.contains(message), "{error}");
    let pid = std::fs::read_to_string(place.path("pid")).unwrap_or_default();
    assert_ne!(pid, "", "it was run");
    let arguments = format!("/proc/{}/cmdline", pid.trim());
    until(SOON, "the end of the plug-in", || {
        std::fs::read_to_string(&arguments).unwrap_or_default().is_empty()
    });
}

#[test]
fn a_server_that_is_not_verified_is_refused() {
    let server = Kubernetes::secure(KNOWN);
    let user = json!({ "token": "hunter2-token" });
    for (cluster, code, message) in [
        (
            json!({ "insecure-skip-tls-verify": true }),
            78,
            "insecure-skip-tls-verify: anyone could take the lock",
        ),
        (json!({}), 69, "unknown authority: name the authority with certificate-authority in the kubeconfig"),
        (
            json!({ "certificate-authority": "ca.pem", "tls-server-name": "elsewhere.example" }),
            69,
            "give the name in the certificate with tls-server-name in the kubeconfig",
        ),
    ] {
        let mut whole = json!({ "server": url(&server) });
        whole.as_object_mut().expect("an object").extend(cluster.as_object().cloned().unwrap_or_default());
        let kubeconfig = write_for(&server, "config", &whole, &user);
        let error = refused(run(&kubeconfig, "k8s://default").args(["--connect-timeout", "2s"]), code);
        assert!(error.contains(message), "{error}");
    }
    let named =
        json!({ "server": url(&server), "certificate-authority": "ca.pem", "tls-server-name": "localhost" });
    assert_runs(&write_for(&server, "named", &named, &json!({ "token": TOKEN })));
}

/// A run in a mount namespace where this directory is the service account of a pod.
fn in_pod(server: &Kubernetes, account: &Path) -> Dlock {
    const MOUNT: &str = "mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io && ln -s \"$1\" \
                         /run/secrets/kubernetes.io/serviceaccount && shift && exec \"$@\"";
    let account = account.to_str().expect("UTF-8");
    let run = Dlock::run().backend("k8s://").args(["--ttl", "6s"]).env_remove("KUBECONFIG");
    let run = run.env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
    let run = run.env("KUBERNETES_SERVICE_PORT", server.port().to_string());
    run.wrapped_by(["unshare", "--mount", "sh", "-c", MOUNT, "sh", account])
}

#[test]
fn a_pod_uses_its_service_account() {
    let (place, server) = (Place::new(), Kubernetes::secure(KNOWN));
    let account = place.path("account");
    std::fs::create_dir(&account).expect("a directory");
    std::fs::copy(server.daemon().directory().join("ca.pem"), account.join("ca.crt")).expect("a copy");
    std::fs::write(account.join("namespace"), "kube-system").expect("a file");
    std::fs::write(account.join("token"), TOKEN).expect("a file");
    let output = in_pod(&server, &account).sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let journal = std::fs::read_to_string(server.daemon().directory().join("journal")).expect("our own file");
    assert!(journal.contains(r#"["leases", "kube-system", "x"]"#), "{journal}");
    std::fs::write(account.join("token"), "hunter2-token").expect("our own file");
    let error = refused(in_pod(&server, &account), 77);
    assert!(error.contains("the server does not accept the credentials"), "{error}");
    // Its lock would be in another cluster than that of the others, who have the file.
    let missing = in_pod(&server, &account).env("KUBECONFIG", "/typo:/another-typo");
    let missing = refused(missing, 78);
    assert!(missing.contains("/typo: no such file or directory"), "{missing}");
    for url in ["k8s://?kubeconfig=/typo", "k8s://kube-system?kubeconfig=/typo"] {
        let missing = refused(in_pod(&server, &account).backend(url), 78);
        assert!(missing.contains("/typo: no such file or directory"), "{missing}");
    }
    let nowhere = refused(Dlock::run().backend("k8s://").env_remove("KUBERNETES_SERVICE_HOST"), 78);
    assert!(
        nowhere.contains("there is no kubeconfig (KUBECONFIG, ~/.kube/config), and dlock is not in a pod"),
        "{nowhere}"
    );
}
