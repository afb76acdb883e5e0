//! Where credentials come from.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Output};
use crate::support::s3::{BUCKET, KEY, S3, SECRET};
use crate::support::wait::until;
use crate::support::web::{Answer, Web};

/// A run without credentials in its URL, and with these variables.
fn run(place: &Place, s3: &S3, variables: &[(&str, &str)], script: &str) -> Output {
    let endpoint = format!("http://127.0.0.1:{}", s3.port());
    let mut run = place.run().backend(format!("s3://{BUCKET}/jobs")).env("AWS_ENDPOINT_URL_S3", endpoint);
    if !variables.iter().any(|(name, _)| name.starts_with("AWS_EC2")) {
        run = run.env("AWS_EC2_METADATA_DISABLED", "true");
    }
    for (name, value) in variables {
        run = run.env(name, value);
    }
    run.args(["--ttl", "10s"]).sh(script).output()
}

fn assert_ran(place: &Place, s3: &S3, variables: &[(&str, &str)]) {
    let output = run(place, s3, variables, "echo ran");
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{variables:?}");
}

fn profile(place: &Place, file: &str, text: &str) {
    std::fs::create_dir_all(place.home().join(".aws")).unwrap();
    std::fs::write(place.home().join(".aws").join(file), text).unwrap();
}

fn stated(ends: &str) -> Answer {
    let text = format!(
        r#"{{"Version":1,"AccessKeyId":"{KEY}","SecretAccessKey":"{SECRET}","Expiration":"{ends}"}}"#
    );
    (200, Vec::new(), text)
}

const FAR: &str = "2099-01-01T00:00:00Z";

#[test]
fn the_environment_goes_before_profiles() {
    let (place, s3) = (Place::new(), S3::lent());
    assert_ran(&place, &s3, &[("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)]);
    let keys = format!(
        "[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n[other]\naws_access_key_id={KEY}\naws_secret_access_key=nothing\n"
    );
    profile(&place, "credentials", &keys);
    assert_ran(&place, &s3, &[]);
    let wrong = run(&place, &s3, &[("AWS_PROFILE", "other")], "echo ran");
    assert_eq!((wrong.exit, wrong.stdout.as_str()), (Exit::Code(77), ""), "{}", wrong.stderr);
    assert!(!wrong.stderr.contains("nothing"), "{}", wrong.stderr);
    let both = [("AWS_PROFILE", "other"), ("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)];
    assert_ran(&place, &s3, &both);
    // A profile that the URL names goes before the environment.
    let named = place
        .run()
        .backend(format!("s3://{BUCKET}/jobs?profile=other&endpoint=http://127.0.0.1:{}", s3.port()));
    let named =
        named.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).args(["--ttl", "10s"]);
    let named = named.env("AWS_EC2_METADATA_DISABLED", "true").sh("echo ran").output();
    assert_eq!((named.exit, named.stdout.as_str()), (Exit::Code(77), ""), "{}", named.stderr);
}

#[test]
fn a_program_of_a_profile_prints_credentials() {
    let (place, s3) = (Place::new(), S3::lent());
    let (_, _, text) = stated(FAR);
    let program = place.script("print keys", &format!("#!/bin/sh\necho '{text}'\n"));
    let program = program.display();
    profile(&place, "config", &format!("[profile p]\ncredential_process = '{program}' --for \"a b\"\n"));
    assert_ran(&place, &s3, &[("AWS_PROFILE", "p")]);
}

/// As one that needs a login, which has ended.
#[test]
fn a_program_that_prints_no_credentials_and_a_web_identity_that_is_not_accepted_are_denied() {
    let (place, s3) = (Place::new(), S3::lent());
    let program = place.script("print nothing", "#!/bin/sh\necho log in >&2\nexit 1\n");
    profile(&place, "config", &format!("[profile p]\ncredential_process = '{}'\n", program.display()));
    let denied = run(&place, &s3, &[("AWS_PROFILE", "p")], "echo ran");
    assert_eq!((denied.exit, denied.stdout.as_str()), (Exit::Code(77), ""), "{}", denied.stderr);
    let why = "credentials: credential_process: it printed no credentials: run it to see why";
    assert!(denied.stderr.contains(why), "{}", denied.stderr);
    let file = place.write("token", "proof\n").display().to_string();
    for (code, exit) in
        [("ExpiredTokenException", 77), ("InvalidIdentityToken", 77), ("IDPCommunicationError", 69)]
    {
        let body = format!("<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>");
        let web = Web::start(move |_| Some((400, Vec::new(), body.clone())));
        let sts = format!("http://127.0.0.1:{}", web.port());
        let identity = [
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/x"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", &file),
            ("AWS_ENDPOINT_URL_STS", &sts),
        ];
        let refused = run(&place, &s3, &identity, "echo ran");
        assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(exit), ""), "{}", refused.stderr);
        assert!(refused.stderr.contains(code), "{}", refused.stderr);
    }
}

#[test]
fn a_program_of_a_profile_that_hangs_ends_with_dlock() {
    let (place, s3) = (Place::new(), S3::lent());
    let program =
        place.script("hang", &format!("#!/bin/sh\necho $$ >{}\nexec sleep 1000\n", place.arg("pid")));
    profile(&place, "config", &format!("[default]\ncredential_process = {}\n", program.display()));
    let url = format!("s3://{BUCKET}/jobs?endpoint=http://127.0.0.1:{}", s3.port());
    let output = place.run().backend(url).args(["--connect-timeout", "5s"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    let pid: i32 = place.read("pid").trim().parse().expect("it was run");
    until(SOON, "the end of the program", || !process::alive(pid));
}

/// An endpoint of the container or the instance has a second to reply. Delays of the machine itself do not count: one of five
/// tries decides.
fn in_time(expected: i32, run: impl Fn() -> Output) -> Output {
    let mut output = run();
    for _ in 0..4 {
        if output.exit != Exit::Code(expected) {
            output = run();
        }
    }
    output
}

/// Those that end are asked for again while the command runs.
#[test]
fn a_container_has_an_endpoint_whose_credentials_are_renewed() {
    let (place, s3) = (Place::new(), S3::lent());
    let web = Web::start(|asked| {
        let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(3);
        let may = asked.header("authorization") == Some("token");
        Some(if may { stated(&soon.to_string()) } else { (403, Vec::new(), String::new()) })
    });
    let url = format!("http://127.0.0.1:{}/role?x=y", web.port());
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "token"),
    ];
    let output = in_time(0, || run(&place, &s3, &variables, "sleep 5; echo ran"));
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let asked = web.asked();
    assert!(asked.len() >= 2 && asked.iter().all(|asked| asked.path == "/role?x=y"), "{asked:?}");
    let elsewhere = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/")];
    let refused = run(&place, &s3, &elsewhere, "echo ran");
    assert_eq!(refused.exit, Exit::Code(78), "{}", refused.stderr);
}

#[test]
fn an_instance_has_a_metadata_service() {
    let (place, s3) = (Place::new(), S3::lent());
    let web = Web::start(|asked| {
        let token = asked.header("x-aws-ec2-metadata-token");
        Some(match (asked.method.as_str(), asked.path.as_str(), token) {
            ("PUT", "/latest/api/token", None) => (200, Vec::new(), "t".into()),
            ("GET", "/latest/meta-data/iam/security-credentials/", Some("t")) => {
                (200, Vec::new(), "role\n".into())
            }
            ("GET", "/latest/meta-data/iam/security-credentials/role", Some("t")) => stated(FAR),
            _ => (404, Vec::new(), String::new()),
        })
    });
    let address = format!("http://127.0.0.1:{}", web.port());
    let variables = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", address.as_str())];
    let output = in_time(0, || run(&place, &s3, &variables, "echo ran"));
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

/// It is not one that has no credentials (77).
#[test]
fn a_metadata_service_that_cannot_reply_now_is_unavailable() {
    let (place, s3) = (Place::new(), S3::lent());
    for (status, said) in [(429, "429 Too Many Requests"), (503, "503 Service Unavailable")] {
        let web = Web::start(move |_| Some((status, Vec::new(), String::new())));
        let address = format!("http://127.0.0.1:{}", web.port());
        let variables = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", address.as_str())];
        let output = in_time(69, || run(&place, &s3, &variables, "echo ran"));
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
        let why = format!("credentials: the instance's metadata service: the server replies {said}");
        assert!(output.stderr.contains(&why), "{}", output.stderr);
    }
}

#[test]
fn a_role_is_assumed_and_a_web_identity_proved() {
    let (place, s3) = (Place::new(), S3::lent());
    let web = Web::start(|asked| {
        let body = String::from_utf8_lossy(&asked.body);
        let is_signed =
            asked.header("authorization").is_some_and(|header| header.contains("/sts/aws4_request"));
        let may = match body.split('&').next() {
            Some("Action=AssumeRole") => is_signed && body.contains("ExternalId=us"),
            _ => body.contains("WebIdentityToken=proof") && !is_signed,
        };
        let keys = format!(
            "<R><AccessKeyId>{KEY}</AccessKeyId><SecretAccessKey>{SECRET}</SecretAccessKey><Expiration>{FAR}</Expiration></R>"
        );
        Some(if may && body.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fx") {
            (200, Vec::new(), keys)
        } else {
            (403, Vec::new(), "<Error><Code>AccessDenied</Code></Error>".into())
        })
    });
    let sts = format!("http://127.0.0.1:{}", web.port());
    let token = place.write("token", "proof\n");
    let role = "arn:aws:iam::1:role/x";
    let text = format!(
        "[profile r]\nrole_arn = {role}\nsource_profile = s\nexternal_id = us\n[profile s]\naws_access_key_id=a\n\
         aws_secret_access_key=of-the-source\n"
    );
    profile(&place, "config", &text);
    assert_ran(&place, &s3, &[("AWS_PROFILE", "r"), ("AWS_ENDPOINT_URL_STS", &sts)]);
    let file = token.display().to_string();
    let identity =
        [("AWS_ROLE_ARN", role), ("AWS_WEB_IDENTITY_TOKEN_FILE", &file), ("AWS_ENDPOINT_URL_STS", &sts)];
    assert_ran(&place, &s3, &identity);
}

#[test]
fn what_is_missing_or_not_supported_is_said() {
    let (place, s3) = (Place::new(), S3::lent());
    let missing = run(&place, &s3, &[], "echo ran");
    assert_eq!((missing.exit, missing.stdout.as_str()), (Exit::Code(77), ""), "{}", missing.stderr);
    assert!(
        missing.stderr.contains("there are no credentials of AWS: set AWS_ACCESS_KEY_ID"),
        "{}",
        missing.stderr
    );
    profile(&place, "config", "[profile s]\nsso_session = x\n");
    let sso = run(&place, &s3, &[("AWS_PROFILE", "s")], "echo ran");
    assert_eq!((sso.exit, sso.stdout.as_str()), (Exit::Code(78), ""), "{}", sso.stderr);
    assert!(sso.stderr.contains("aws configure export-credentials --profile s"), "{}", sso.stderr);
}
