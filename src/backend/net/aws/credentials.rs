//! The credentials of this process: where they are found, and when they are refreshed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::keys::Keys;
use super::profile::{Profile, Settings};
use super::provider;
use crate::backend::net::closed;
use crate::backend::{StoreError, net};
use crate::clock::Moment;

/// Credentials are refreshed when they end within this time or within a lease, whichever is longer, so that a refresh has more
/// than one chance.
const BEFORE_END: Duration = Duration::from_secs(5 * 60);
/// How long it takes until a refresh that has failed is tried again, while the credentials are still valid.
const AGAIN: Duration = Duration::from_secs(60);
/// How long a refresh is waited for. A program runs on after that.
const REFRESH_WITHIN: Duration = Duration::from_secs(2);

/// A program that prints credentials, as it runs.
type Program = JoinHandle<Result<Keys, StoreError>>;

/// The credentials of this process, and what they were found by.
#[derive(Clone)]
pub struct Credentials {
    /// Those of the URL.
    own: net::Credentials,
    settings: Settings,
    region: String,
    keys: Option<Keys>,
    /// The program of a profile, if it runs.
    program: Arc<Mutex<Option<Program>>>,
    /// When they were refreshed last, or that was tried.
    tried: Moment,
    /// Where they come from, for doctor.
    source: &'static str,
}

impl Credentials {
    /// Returns the credentials of a URL, or else those that these settings describe; `region` is that of the service that
    /// issues them. Nothing is read yet.
    pub fn new(own: &net::Credentials, settings: &Settings, region: &str) -> Credentials {
        let (own, settings, region) = (own.clone(), settings.clone(), region.to_owned());
        let (program, tried) = (Arc::default(), Moment::now());
        Credentials { own, settings, region, keys: None, program, tried, source: "" }
    }

    /// Returns the source of the keys.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// Returns a key that is valid now, which is looked for if the last one has ended.
    ///
    /// # Errors
    /// There are no credentials, or none that this reads, or their source has failed.
    pub async fn keys(&mut self) -> Result<Keys, StoreError> {
        if let Some(keys) = self.keys.clone().filter(|keys| !keys.left().is_zero()) {
            return Ok(keys);
        }
        self.tried = Moment::now();
        // In a box: it is large, and so would be each future that contains it.
        let (keys, source) = Box::pin(self.find()).await?;
        self.source = source;
        self.keys = Some(keys.clone());
        Ok(keys)
    }

    /// Refreshes a key that ends soon or within a lease of this length; one that cannot be refreshed is used until its end. May be
    /// dropped: no request is to wait for a source that is slow.
    pub async fn refresh(&mut self, lease: Duration) {
        let left = self.keys.as_ref().map_or(Duration::MAX, Keys::left);
        if left <= BEFORE_END.max(lease) && Moment::now() - self.tried >= AGAIN.min(left / 2) {
            // Before anything is asked: an attempt that takes too long is not repeated with the next request.
            self.tried = Moment::now();
            if let Ok(Ok((keys, _))) = tokio::time::timeout(REFRESH_WITHIN, Box::pin(self.find())).await {
                self.keys = Some(keys);
            }
        }
    }

    /// Forgets the keys, which were refused: perhaps their source has new ones.
    pub fn forget(&mut self) {
        self.keys = None;
        // What a program has printed meanwhile may be as old.
        if let Ok(mut program) = self.program.try_lock() {
            program.take_if(|program| program.is_finished());
        }
    }

    /// Looks for credentials in the order of AWS's command-line interface (`botocore.credentials`).
    async fn find(&self) -> Result<(Keys, &'static str), StoreError> {
        let settings = &self.settings;
        if let Some(id) = self.own.username()
            && let Some(secret) = self.own.password()?
        {
            return Ok((Keys::new(id, &secret, None), "the URL"));
        }
        if !settings.names_profile()
            && let Some(keys) = of_environment(settings)?
        {
            return Ok((keys, "the environment"));
        }
        let profile = settings.profile()?;
        if let Some(found) = self.of_profile(&profile, 0).await? {
            return Ok(found);
        }
        if let Some(keys) = provider::container(settings).await? {
            return Ok((keys, "the container's endpoint"));
        }
        if let Some(keys) = provider::instance(settings).await? {
            return Ok((keys, provider::METADATA_SERVICE));
        }
        if self.source == provider::METADATA_SERVICE {
            // Its silence would have meant that there is none.
            return Err(StoreError::unreachable(format!("credentials: {} does not reply", self.source)));
        }
        Err(StoreError::Denied(
            "there are no credentials of AWS: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile by AWS_PROFILE, or \
             give the container or instance a role"
                .into(),
        ))
    }

    /// Looks in a profile, which is the source of this many others.
    async fn of_profile(
        &self,
        profile: &Profile,
        depth: u32,
    ) -> Result<Option<(Keys, &'static str)>, StoreError> {
        let settings = &self.settings;
        let role = profile.get("role_arn");
        let session = profile.get("role_session_name").or(settings.variable("AWS_ROLE_SESSION_NAME"));
        let sts = provider::Sts { settings, region: profile.get("region").unwrap_or(&self.region), session };
        if let (Some(role), None) = (role, profile.get("web_identity_token_file")) {
            if depth > 4 || profile.get("mfa_serial").is_some() {
                return Err(StoreError::Config(format!(
                    "profile '{}': a role that needs a person (mfa_serial), or a chain of too many roles: see aws configure \
                     export-credentials",
                    profile.name
                )));
            }
            let source = Box::pin(self.source_of(profile, depth)).await?;
            let external = profile.get("external_id");
            return sts
                .assume_role(&source, role, external)
                .await
                .map(|keys| Some((keys, "an assumed role")));
        }
        let in_environment = || {
            let is_meant = depth == 0 && !settings.names_profile();
            let role = settings.variable("AWS_ROLE_ARN").filter(|_| is_meant)?;
            Some((role, settings.variable("AWS_WEB_IDENTITY_TOKEN_FILE")?))
        };
        let identity = role.zip(profile.get("web_identity_token_file")).or_else(in_environment);
        if let Some((role, file)) = identity {
            return sts.web_identity(role, file).await.map(|keys| Some((keys, "a web identity")));
        }
        if profile.get("sso_session").or(profile.get("sso_start_url")).is_some() {
            return Err(StoreError::Config(format!(
                "profile '{}' logs in by SSO, which dlock does not: run dlock under the variables that aws configure \
                 export-credentials --profile {} --format env prints",
                profile.name, profile.name
            )));
        }
        if let Some(keys) = of_files(profile) {
            return Ok(Some((keys, "a profile")));
        }
        match profile.get("credential_process") {
            Some(command) => {
                let keys = self.printed(command).await;
                keys.map(|keys| Some((keys, "the credential process of a profile")))
            }
            None => Ok(None),
        }
    }

    /// Returns the keys that the program of a profile prints. If the future is dropped, it runs on until the runtime ends, and
    /// what it prints is used by the next call.
    async fn printed(&self, command: &str) -> Result<Keys, StoreError> {
        let mut program = self.program.lock().await;
        loop {
            let has_ended = program.as_ref().is_some_and(JoinHandle::is_finished);
            let run = || tokio::spawn(provider::process(command.to_owned()));
            let keys = program.get_or_insert_with(run).await.unwrap_or_else(|_| Err(closed()));
            *program = None;
            // Keys that were printed earlier may have expired, and an earlier failure may be over.
            if !has_ended || keys.as_ref().is_ok_and(|keys| !keys.left().is_zero()) {
                return keys.map_err(|error| match error {
                    // It has printed some for this process, so that it fails for now.
                    StoreError::Denied(why) if !self.source.is_empty() => StoreError::unreachable(why),
                    error => error,
                });
            }
        }
    }

    /// Returns the keys that a profile assumes its role with.
    async fn source_of(&self, profile: &Profile, depth: u32) -> Result<Keys, StoreError> {
        let settings = &self.settings;
        let missing = || {
            StoreError::Config(format!(
                "profile '{}': role_arn needs a source_profile with credentials, or a credential_source",
                profile.name
            ))
        };
        if let Some(source) = profile.get("source_profile") {
            if source == profile.name {
                return of_files(profile).ok_or_else(missing);
            }
            let source = settings.profile_of(source, true)?;
            let found = self.of_profile(&source, depth + 1).await?;
            return found.map(|(keys, _)| keys).ok_or_else(missing);
        }
        let keys = match profile.get("credential_source") {
            Some("Environment") => of_environment(settings)?,
            Some("EcsContainer") => provider::container(settings).await?,
            Some("Ec2InstanceMetadata") => provider::instance(settings).await?,
            _ => None,
        };
        keys.ok_or_else(missing)
    }
}

/// Returns the keys that the files have for a profile, if there are any.
fn of_files(profile: &Profile) -> Option<Keys> {
    let (id, secret) = profile.get("aws_access_key_id").zip(profile.get("aws_secret_access_key"))?;
    Some(Keys::new(id, secret, profile.get("aws_session_token")))
}

/// Returns the keys in the environment, if there are any.
fn of_environment(settings: &Settings) -> Result<Option<Keys>, StoreError> {
    let Some(id) = settings.variable("AWS_ACCESS_KEY_ID") else { return Ok(None) };
    let missing = || StoreError::Config("AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY".into());
    let secret = settings.variable("AWS_SECRET_ACCESS_KEY").ok_or_else(missing)?;
    Ok(Some(Keys::new(id, secret, settings.variable("AWS_SESSION_TOKEN"))))
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::clock::wall_micros;

    /// Returns what a program prints: a key of this id, which ends after so many seconds.
    fn stated(id: &str, seconds: u64) -> String {
        let ends = wall_micros() / 1_000_000 + seconds;
        let ends = jiff::Timestamp::from_second(ends as i64).expect("a time");
        format!(
            r#"{{"Version":1,"AccessKeyId":"{id}","SecretAccessKey":"of the test","Expiration":"{ends}"}}"#
        )
    }

    #[tokio::test]
    async fn keys_that_end_soon_are_refreshed_before_a_request_needs_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let (printed, config) = (directory.path().join("printed"), directory.path().join("config"));
        let program = format!("/bin/cat {}", printed.display());
        std::fs::write(&config, format!("[default]\ncredential_process = {program}\n")).expect("a file");
        let print = |id: &str, seconds: u64| {
            std::fs::write(&printed, stated(id, seconds)).expect("a file");
        };
        let variable = |name: &str| (name == "AWS_CONFIG_FILE").then(|| config.display().to_string());
        let settings = Settings::of(&variable, None);
        let mut credentials = Credentials::new(&net::Credentials::default(), &settings, "x");
        let lease = Duration::from_secs(60);
        print("first", 240);
        assert_eq!(credentials.keys().await.expect("keys").id, "first");
        print("second", 600);
        credentials.refresh(lease).await;
        assert_eq!(credentials.keys().await.expect("keys").id, "first", "they have just been read");
        credentials.tried = Moment::now().saturating_sub(AGAIN);
        assert_eq!(credentials.keys().await.expect("keys").id, "first", "no request waits for a refresh");
        credentials.refresh(lease).await;
        assert_eq!(credentials.keys().await.expect("keys").id, "second");
        print("third", 3600);
        credentials.tried = Moment::now().saturating_sub(AGAIN);
        credentials.refresh(lease).await;
        assert_eq!(
            credentials.keys().await.expect("keys").id,
            "second",
            "they last longer than the next leases"
        );
        credentials.refresh(Duration::from_secs(900)).await;
        assert_eq!(credentials.keys().await.expect("keys").id, "third", "the next renewal may be too late");
    }

    /// A refresh is given up when the next renewal is due.
    #[tokio::test]
    async fn a_program_that_takes_longer_than_a_refresh_is_not_begun_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let script = "cd \"$1\"; echo >>begun; while [ ! -e printed ]; do sleep 0.01; done; cat printed";
        let program = format!("/bin/sh {} {}", path("program").display(), directory.path().display());
        let print = |id: &str, seconds: u64| {
            std::fs::write(path("unfinished"), stated(id, seconds)).expect("a file");
            std::fs::rename(path("unfinished"), path("printed")).expect("a file");
        };
        std::fs::write(path("program"), script).expect("a file");
        std::fs::write(path("config"), format!("[default]\ncredential_process = {program}\n"))
            .expect("a file");
        let variable = |name: &str| (name == "AWS_CONFIG_FILE").then(|| path("config").display().to_string());
        let settings = Settings::of(&variable, None);
        let mut credentials = Credentials::new(&net::Credentials::default(), &settings, "x");
        print("first", 240);
        assert_eq!(credentials.keys().await.expect("keys").id, "first");
        std::fs::remove_file(path("printed")).expect("a file");
        let begun = || std::fs::read_to_string(path("begun")).unwrap_or_default().lines().count();
        let has_begun = async {
            while begun() < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        credentials.tried = Moment::now().saturating_sub(AGAIN);
        tokio::select! {
            () = credentials.refresh(Duration::ZERO) => {}
            () = has_begun => {}
        }
        assert_eq!(credentials.keys().await.expect("keys").id, "first");
        print("second", 3600);
        let program_of = Arc::clone(&credentials.program);
        let has_ended = async || {
            while !program_of.lock().await.as_ref().is_some_and(JoinHandle::is_finished) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        has_ended().await;
        credentials.tried = Moment::now().saturating_sub(AGAIN);
        credentials.refresh(Duration::ZERO).await;
        assert_eq!((credentials.keys().await.expect("keys").id.as_str(), begun()), ("second", 2));
        // It is run again if it has failed, or its keys have expired, before they were asked for.
        for (id, seconds) in [("expired", 0), ("", 0)] {
            match id {
                "" => std::fs::write(path("printed"), "an error").expect("a file"),
                _ => print(id, seconds),
            }
            *credentials.program.lock().await = Some(tokio::spawn(provider::process(program.clone())));
            has_ended().await;
            print("third", 3600);
            credentials.keys = None;
            assert_eq!(credentials.keys().await.expect("keys").id, "third", "{id}");
        }
        assert_eq!(begun(), 6);
    }

    #[tokio::test]
    async fn a_program_that_has_printed_keys_before_is_unavailable_when_it_prints_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let (printed, config) = (directory.path().join("printed"), directory.path().join("config"));
        let program = format!("/bin/cat {}", printed.display());
        std::fs::write(&config, format!("[default]\ncredential_process = {program}\n")).expect("a file");
        let variable = |name: &str| (name == "AWS_CONFIG_FILE").then(|| config.display().to_string());
        let settings = Settings::of(&variable, None);
        let mut credentials = Credentials::new(&net::Credentials::default(), &settings, "x");
        let why = "credentials: credential_process: it printed no credentials: run it to see why";
        for text in ["", "an error"] {
            std::fs::write(&printed, text).expect("a file");
            assert_eq!(credentials.keys().await.err(), Some(StoreError::Denied(why.into())), "{text}");
        }
        std::fs::write(&printed, stated("first", 3600)).expect("a file");
        assert_eq!(credentials.keys().await.expect("keys").id, "first");
        std::fs::write(&printed, "").expect("a file");
        credentials.forget();
        assert_eq!(credentials.keys().await.err(), Some(StoreError::unreachable(why)));
    }

    #[tokio::test]
    async fn a_metadata_service_that_has_replied_before_is_unavailable_when_it_is_silent() {
        let variable = |name: &str| (name == "AWS_EC2_METADATA_DISABLED").then(|| "true".to_owned());
        let settings = Settings::of(&variable, None);
        let mut credentials = Credentials::new(&net::Credentials::default(), &settings, "x");
        assert!(matches!(credentials.keys().await, Err(StoreError::Denied(_))));
        credentials.source = provider::METADATA_SERVICE;
        assert!(matches!(credentials.keys().await, Err(StoreError::Unavailable { .. })));
    }
}
