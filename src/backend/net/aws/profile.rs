//! What the environment and the configuration files of AWS say, read as AWS's own command-line interface reads them
//! (<https://docs.aws.amazon.com/cli/latest/userguide/cli-configure-files.html>).

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;

use crate::backend::url::Environment;
use crate::backend::{StoreError, io_text};
use crate::input;

/// Longer than any such file.
const LONGEST: u64 = 1 << 20;
/// The variables that are read.
const VARIABLES: [&str; 32] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_DYNAMODB",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_CA_BUNDLE",
    "https_proxy",
    "HTTPS_PROXY",
    "http_proxy",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "HOME",
];

/// The variables that are set.
#[derive(Clone, Default)]
pub struct Settings {
    variables: BTreeMap<&'static str, String>,
    /// The profile that the URL names.
    profile: Option<String>,
}

/// The settings of one profile, from both files.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Its name.
    pub name: String,
    values: BTreeMap<String, String>,
}

impl Settings {
    /// Returns the settings of an environment, with the profile that the URL names, if it does.
    pub fn of(environment: Environment<'_>, profile: Option<&str>) -> Settings {
        let set = |name: &&'static str| environment(name).filter(|value| !value.is_empty());
        let variables = VARIABLES.iter().filter_map(|name| Some((*name, set(name)?))).collect();
        Settings { variables, profile: profile.map(str::to_owned) }
    }

    /// Returns whether the URL names the profile: the keys and the role of the environment do not count then, as with
    /// `--profile` of AWS's command-line interface.
    pub fn names_profile(&self) -> bool {
        self.profile.is_some()
    }

    /// Returns the value of a variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns the URL of a service's endpoint that the environment or the profile configures, and what configures it.
    ///
    /// # Errors
    /// As of [`profile`](Settings::profile).
    pub fn endpoint(&self, variable: &'static str) -> Result<Option<(&'static str, String)>, StoreError> {
        const ALL: &str = "AWS_ENDPOINT_URL";
        if self.is_on("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") {
            return Ok(None);
        }
        for name in [variable, ALL] {
            if let Some(url) = self.variable(name) {
                return Ok(Some((name, url.to_owned())));
            }
        }
        Ok(self.profile()?.get("endpoint_url").map(|url| ("endpoint_url of the profile", url.to_owned())))
    }

    /// Returns whether a variable says yes.
    pub fn is_on(&self, name: &str) -> bool {
        self.variable(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// Returns the profile in use, which need not exist if nobody has named it.
    ///
    /// # Errors
    /// A file cannot be read, or there is no profile of the name that was given.
    pub fn profile(&self) -> Result<Profile, StoreError> {
        let named = self.profile.as_deref();
        let named = named.or_else(|| self.variable("AWS_PROFILE").or(self.variable("AWS_DEFAULT_PROFILE")));
        self.profile_of(named.unwrap_or("default"), named.is_some())
    }

    /// Returns the profile of this name.
    ///
    /// # Errors
    /// A file cannot be read, or there is no such profile although it has to exist.
    pub fn profile_of(&self, name: &str, must_exist: bool) -> Result<Profile, StoreError> {
        let config = self.read("AWS_CONFIG_FILE", ".aws/config")?;
        let credentials = self.read("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")?;
        // The configuration may have this profile without the word.
        let bare = || section_of(&config, name).filter(|_| name == "default");
        let named = section_of(&config, &format!("profile {name}"));
        let found = [named.or_else(bare), section_of(&credentials, name)];
        if must_exist && found.iter().all(Option::is_none) {
            return Err(StoreError::Config(format!(
                "AWS's configuration files have no profile '{name}' (AWS_PROFILE, profile=)"
            )));
        }
        Ok(Profile { name: name.to_owned(), values: found.into_iter().flatten().flatten().collect() })
    }

    /// Returns the text of a file; nothing if it does not exist.
    fn read(&self, variable: &str, usual: &str) -> Result<String, StoreError> {
        let home = |rest: &str| self.variable("HOME").map(|home| PathBuf::from(home).join(rest));
        let path = match self.variable(variable) {
            Some(path) => path.strip_prefix("~/").map_or_else(|| Some(PathBuf::from(path)), home),
            None => home(usual),
        };
        let Some(path) = path else { return Ok(String::new()) };
        match input::read(&path, LONGEST) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(StoreError::Config(format!("{}: {}", path.display(), io_text(&error)))),
        }
    }
}

impl Profile {
    /// Returns a setting that is not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Returns the settings in the section of this name; `None` if there is none. Settings of a setting, which are indented, are
/// left out.
fn section_of(text: &str, name: &str) -> Option<Vec<(String, String)>> {
    let (mut found, mut is_inside) = (None, false);
    for line in text.lines() {
        let is_comment = line.starts_with(['#', ';']);
        if let Some(section) = line.trim().strip_prefix('[') {
            let section = section.split(']').next().unwrap_or_default();
            is_inside = section.split_whitespace().eq(name.split_whitespace());
            if is_inside {
                found.get_or_insert_with(Vec::new);
            }
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_inside && !is_comment)
            && !line.starts_with([' ', '\t'])
        {
            let value = value.split(" #").next().unwrap_or_default().trim();
            found.get_or_insert_with(Vec::new).push((key.trim().to_ascii_lowercase(), value.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_as_aws_reads_it() {
        let text = "[default]\nregion = eu-west-1 # comment\n[profile  a b]\n# role_arn = no\ns3 =\n  region = no\n\
                    Role_ARN=arn:x=y\n[profile other]\nregion=no\n[profile a b]\nregion=b\n";
        let found = |name| {
            section_of(text, name).map(|pairs| {
                pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(found("default"), Some("region=eu-west-1".to_owned()));
        assert_eq!(found("profile a b"), Some("s3= role_arn=arn:x=y region=b".to_owned()));
        assert_eq!(found("a b"), None);
    }

    #[test]
    fn the_default_profile_may_be_called_a_profile_in_the_configuration() {
        let directory = tempfile::tempdir().expect("a directory");
        let region = |config: &str, credentials: &str| {
            let file = |name: &str, text: &str| {
                let path = directory.path().join(name);
                std::fs::write(&path, text).expect("a file");
                path.display().to_string()
            };
            let (config, credentials) = (file("config", config), file("credentials", credentials));
            let variable = |name: &str| match name {
                "AWS_CONFIG_FILE" => Some(config.clone()),
                "AWS_SHARED_CREDENTIALS_FILE" => Some(credentials.clone()),
                _ => None,
            };
            let profile = Settings::of(&variable, None).profile().expect("a profile");
            profile.get("region").map(str::to_owned)
        };
        let (bare, named) = ("[default]\nregion = a\n", "[profile default]\nregion = b\n");
        assert_eq!(region(bare, ""), Some("a".to_owned()));
        assert_eq!(region(named, ""), Some("b".to_owned()));
        for both in [format!("{bare}{named}"), format!("{named}{bare}")] {
            assert_eq!(region(&both, ""), Some("b".to_owned()), "{both}");
        }
        assert_eq!(region("", named), None, "the credentials have names alone");
    }
}
